"""The `anabranch` command: parses its words and starts the command.

The module of a command is imported when the command runs, so that the start stays fast. Exit codes: 0 done,
1 refused or failed, 2 wrong usage, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from anabranch.cli import (
    data_parser,
    doctor_parser,
    lane_parser,
    pipeline_parser,
    quotas_parser,
    rights_parser,
    role_options,
    sink_parser,
    token_parser,
    topic_parser,
)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

EPILOG = """\
examples:
  anabranch serve                                  a broker on 127.0.0.1:6650, data in ./anabranch-data
  anabranch produce orders --key alice --value hi  one message to topic://public/default/orders
  anabranch consume orders --from earliest         read it back
  anabranch topic split orders 0                   split segment 0 of that topic
  anabranch topic show orders                      draw its segments
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has closed it; Python must not report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from anabranch.errors import AnabranchError

        if not isinstance(error, AnabranchError | OSError):
            raise
        print(f"anabranch: {error}{_advice(error)}", file=sys.stderr)
        return EXIT_FAILED


def _advice(error: Exception) -> str:
    from anabranch.errors import AuthenticationError, AuthorizationError

    if isinstance(error, AuthenticationError) and not error.retryable:
        return "; prove your role with --token-file, ANABRANCH_TOKEN or --client-conf"
    if isinstance(error, AuthorizationError):
        return "; the role of this command lacks the right, or proves another role than you think"
    return ""


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Elastic ordered streams: topics that split and merge by themselves, in key order.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_config(commands)
    topic_parser.add_topic(commands)
    topic_parser.add_brokers(commands)
    lane_parser.add_lane(commands)
    rights_parser.add_tenant(commands)
    rights_parser.add_namespace(commands)
    rights_parser.add_permissions(commands)
    quotas_parser.add_quotas(commands)
    data_parser.add_store(commands)
    data_parser.add_backup(commands)
    data_parser.add_secret(commands)
    token_parser.add_token(commands)
    doctor_parser.add_doctor(commands)
    pipeline_parser.add_pipeline(commands)
    sink_parser.add_sink(commands)
    _add_produce(commands)
    _add_consume(commands)
    bench = commands.add_parser(
        "bench", help="measure this machine, compared with the official Pulsar client"
    )
    if argv and argv[0] == "bench":
        # The benchmarks import the client, Spark and more, which slows the start of other commands.
        from anabranch.bench import main as benchmarks

        benchmarks.add_arguments(bench)
        bench.set_defaults(run=benchmarks.run)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from anabranch.protocol.connection import SERVER_VERSION

        print(SERVER_VERSION.lower())
        parser.exit()


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker in the foreground. When it accepts connections it prints one line, "
        "`ready pulsar://HOST:PORT http://HOST:PORT`, and the addresses of TLS ports behind them. SIGTERM or "
        "Ctrl-C stop it cleanly. "
        "With --workers N, N processes share the work: clients use the same two addresses, each worker also "
        "has its own on the ports behind them, and one that dies or hangs is replaced while the others take "
        "over. `anabranch config` lists all settings.",
    )
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the binary protocol (6650); 0 picks a free one")
    parser.add_argument(
        "--http-port", type=int, help="port of admin API and metrics (8080); 0 picks a free one"
    )
    parser.add_argument("--tls-port", type=int, help="port of the binary protocol over TLS (none)")
    parser.add_argument("--https-port", type=int, help="port of admin API and metrics over TLS (none)")
    parser.add_argument("--data", metavar="DIR", help="data directory (./anabranch-data)")
    parser.add_argument("--workers", type=int, metavar="N", help="how many processes share the work (1)")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read settings from this file first: TOML, or like Pulsar's broker.conf",
    )
    parser.add_argument(
        "--allow-unauthenticated",
        action="store_true",
        default=None,
        help="serve without authentication although other machines reach the address",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change one setting; may be repeated"
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from anabranch.config.doors import check_open_door
    from anabranch.config.files import load_config

    names = (
        "host",
        "port",
        "http_port",
        "tls_port",
        "https_port",
        "data",
        "workers",
        "allow_unauthenticated",
    )
    given = {name: getattr(arguments, name) for name in names}
    sets = [f"{name}={value}" for name, value in given.items() if value is not None]
    config = load_config(arguments.config, [*arguments.set, *sets])
    check_open_door(config.host, authentication=config.authentication, allowed=config.allow_unauthenticated)
    if config.workers > 1:
        from anabranch.supervisor import run as supervise

        return supervise(config)
    from anabranch.node import run

    return run(config)


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "config",
        help="print the default configuration file, which describes every setting",
        description="Print the default configuration file. Keep the lines you want to change in a file of "
        "your own and pass it with `anabranch serve --config FILE`.",
    )
    parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    from anabranch.config.files import default_text

    print(default_text(), end="")
    return 0


def _add_client_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="topic://tenant/namespace/name, or a bare name of public/default")
    parser.add_argument(
        "--url", metavar="URL", help="the broker's address; or ANABRANCH_URL (pulsar://127.0.0.1:6650)"
    )
    role_options.add_role_options(parser)


def _add_produce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "produce",
        help="send messages",
        description="Send messages and wait until all of them are stored. Without --value, each line of "
        "standard input is a message.",
    )
    _add_client_options(parser)
    parser.add_argument("--key", metavar="KEY", help="key of every message; {n} stands for its number from 0")
    parser.add_argument(
        "--value",
        default="-",
        metavar="TEXT",
        help="value of each message; {n} as in --key; - reads lines (default)",
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="how often to send the value (1), or how many lines to read"
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.set_defaults(run=_run_client, sends=True)


def _add_consume(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "consume",
        help="receive and print messages",
        description="Print messages as they arrive, `key<TAB>value`, and acknowledge them. "
        "Ctrl-C or SIGTERM ends it; other consumers of the subscription take over at once.",
    )
    _add_client_options(parser)
    parser.add_argument(
        "--subscription", default="anabranch-cli", metavar="NAME", help="which one to read (anabranch-cli)"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after this many messages")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="end when no message arrives for this many seconds"
    )
    parser.add_argument(
        "--from",
        dest="start",
        choices=["earliest", "latest"],
        default="latest",
        help="where a new subscription begins (latest)",
    )
    parser.add_argument(
        "--type",
        dest="kind",
        choices=["stream", "queue"],
        default="stream",
        help="stream keeps the order of each key, queue shares all messages out (stream)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=_run_client, sends=False)


def _run_client(arguments: argparse.Namespace) -> int:
    from anabranch.cli import messages

    return messages.produce(arguments) if arguments.sends else messages.consume(arguments)


if __name__ == "__main__":
    sys.exit(main())
