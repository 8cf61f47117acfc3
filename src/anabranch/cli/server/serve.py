"""`anabranch serve` and `config`: the options that the parser knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from anabranch.cli.answers import tell
from anabranch.cli.options import AsJson, Settings
from anabranch.cli.server.serving import ServeOptions, run_broker, setting


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ListenWords:
    """The addresses of a process that clients connect to."""

    host: Annotated[str | None, Parameter(help="address to listen on (127.0.0.1)")] = None
    port: Annotated[
        int | None, Parameter(metavar="N", help="port of the binary protocol (6650); 0 picks a free one")
    ] = None
    http_port: Annotated[
        int | None, Parameter(metavar="N", help="port of admin API and metrics (8080); 0 picks a free one")
    ] = None
    tls_port: Annotated[
        int | None, Parameter(metavar="N", help="port of the binary protocol over TLS (none)")
    ] = None
    https_port: Annotated[
        int | None, Parameter(metavar="N", help="port of admin API and metrics over TLS (none)")
    ] = None
    allow_unauthenticated: Annotated[
        bool, Parameter(help="serve without authentication although other machines reach the address")
    ] = False

    def settings(self) -> list[str]:
        """The settings that the given options change."""
        given = {**vars(self), "allow_unauthenticated": "true" if self.allow_unauthenticated else None}
        return [setting(name, value) for name, value in given.items() if value is not None]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeWords(ListenWords):
    """The settings that have an option of their own."""

    data: Annotated[str | None, Parameter(metavar="DIR", help="data directory (./anabranch-data)")] = None
    workers: Annotated[int | None, Parameter(metavar="N", help="how many processes share the work (1)")] = (
        None
    )


SERVE_WORDS: Final = ServeWords()


def serve(
    *,
    given: ServeWords = SERVE_WORDS,
    config: Annotated[
        str | None,
        Parameter(
            metavar="FILE", help="read settings from this file first: TOML, or like Pulsar's broker.conf"
        ),
    ] = None,
    sets: Settings = (),
) -> int:
    """Run a broker.

    The broker runs in the foreground. When it accepts connections it prints one line, `ready
    pulsar://HOST:PORT http://HOST:PORT`, and the addresses of TLS ports behind them. SIGTERM or Ctrl-C stop
    it cleanly. With --workers N, N processes share the work: clients use the same two addresses, each worker
    also has its own on the ports behind them, and one that dies or hangs is replaced while the others take
    over. `anabranch config` lists all settings.
    """
    return run_broker(ServeOptions(config, (*sets, *given.settings())))


def print_config(*, as_json: AsJson = False) -> int:
    """Print the default configuration file, which describes every setting.

    Keep the lines you want to change in a file of your own and pass it with `anabranch serve --config FILE`.
    """
    from anabranch.config.files import default_settings, default_text

    return tell(default_settings(), default_text().rstrip("\n"), as_json=as_json)
