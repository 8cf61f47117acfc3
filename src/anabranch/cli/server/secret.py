"""`anabranch secret ...`: the secret between the brokers of a data directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.answers import tell
from anabranch.cli.options import AsJson, DataDirectory, command_group
from anabranch.cli.signals import ended_by_signals
from anabranch.data.directory import METADATA_FILE
from anabranch.errors import InvalidConfigurationError
from anabranch.security.peer_secret_file import PeerSecretFile

OVERLAP_MAX_S = 86_400.0

app = command_group("secret", "Rotate the secret between the brokers of a data directory.", help_epilogue="")


@app.command
def rotate(
    *,
    data: DataDirectory = "./anabranch-data",
    overlap: Annotated[
        float, Parameter(metavar="S", help="seconds for which the old secret is still accepted (10)")
    ] = 10.0,
    as_json: AsJson = False,
) -> int:
    """Make a new secret between brokers, while they serve or after they stopped; the old one ends soon."""
    if not 0 <= overlap <= OVERLAP_MAX_S:
        raise InvalidConfigurationError(f"--overlap must be 0 to {OVERLAP_MAX_S:g} seconds")
    if not (Path(data) / METADATA_FILE).is_file():
        raise InvalidConfigurationError(f"{data} is not a data directory: it has no {METADATA_FILE}")
    file = PeerSecretFile(Path(data))
    with ended_by_signals():
        made = file.rotate(overlap)
        if not as_json:
            print(f"made a new secret; the old one is accepted for {overlap:g} more seconds", flush=True)
        # If the command is interrupted, brokers end the old secret by themselves.
        time.sleep(overlap)
        file.finish(made)
    return tell({"rotated": data, "overlap_s": overlap}, "the old secret has ended", as_json=as_json)
