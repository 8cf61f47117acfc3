"""`anabranch completion`: the completion of a shell, printed or installed."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from anabranch.cli.parsing import make_app


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="the shell")],
    /,
    *,
    install: Annotated[
        bool, Parameter(help="write it where the shell finds it, and say where, instead of printing it")
    ] = False,
) -> int:
    """Print or install the completion of a shell.

    For one session: `source <(anabranch completion bash)`.
    """
    app = make_app()
    if install:
        path = app.install_completion(shell=shell)
        print(f"wrote {path}; a new shell uses it")
    else:
        print(app.generate_completion(shell=shell))
    return 0
