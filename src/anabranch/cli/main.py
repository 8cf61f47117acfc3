"""The `anabranch` command: starts the command that its words name, and reports errors.

The parser, and the module of a command, are imported when they are needed. `anabranch serve` with plain
options starts without the parser. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted,
143 ended by SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from anabranch.cli.server.serving import plain_options, run_broker

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, and raises SystemExit for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options = plain_options(words[1:]) if words[:1] == ["serve"] else None
        if options is not None:
            return run_broker(options)
        return _parse_and_run(words)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has closed it; Python must not report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        extra = _missing_extra(error)
        if extra is None:
            raise
        print(f"anabranch: this needs more packages: pip install 'anabranch[{extra}]'", file=sys.stderr)
        return EXIT_FAILED
    except Exception as error:
        from anabranch.errors import AnabranchError

        if not isinstance(error, AnabranchError | OSError):
            raise
        print(f"anabranch: {error}{_advice(error)}", file=sys.stderr)
        return EXIT_FAILED


def _parse_and_run(words: list[str]) -> int:
    from anabranch.cli.parsing import run_words

    return run_words(words)


def _missing_extra(error: BaseException | None) -> str | None:
    """Return the extra of the package that could not be imported; None if it is in no extra."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            return _EXTRAS.get(error.name.partition(".")[0])
        error = error.__cause__
    return None


_EXTRAS: Final = {
    **dict.fromkeys(("cyclopts", "rich"), "cli"),
    **dict.fromkeys(("bcrypt", "cryptography", "jwt", "prometheus_client", "starlette", "uvicorn"), "server"),
    "kazoo": "pulsar",
    **dict.fromkeys(("pyspark", "pyarrow", "pandas", "numpy"), "spark"),
}


def _advice(error: Exception) -> str:
    from anabranch.errors import AuthenticationError, AuthorizationError

    if isinstance(error, AuthenticationError) and not error.retryable:
        return "; prove your role with --token-file, ANABRANCH_TOKEN or --client-conf"
    if isinstance(error, AuthorizationError):
        return "; the role of this command lacks the right, or proves another role than you think"
    return ""


if __name__ == "__main__":
    sys.exit(main())
