"""The tree of all commands. The module of a command is imported when its words or its help are needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from anabranch.cli.answers import UsageError
from anabranch.cli.options import SECRET_OPTIONS

EXIT_USAGE = 2
HELP = ("--help", "-h")

EXAMPLES = """\
examples:
  anabranch serve                                  a broker on 127.0.0.1:6650, data in ./anabranch-data
  anabranch produce orders --key alice --value hi  one message to topic://public/default/orders
  anabranch consume orders --from earliest         look at its messages; nothing is left behind
  anabranch topic split orders 0                   split segment 0 of that topic
  anabranch topic show orders                      draw its segments
"""

_COMMANDS: Final = {
    "serve": ("server.serve:serve", "run a broker"),
    "control": ("server.control:control", "lead topics over an Apache Pulsar cluster"),
    "config": (
        "server.serve:print_config",
        "print the default configuration file, which describes every setting",
    ),
    "produce": ("topics.produce:produce", "send messages"),
    "consume": ("topics.consume:consume", "receive and print messages"),
    "topic": ("topics.topic:app", "create, show, split, merge, rebucket, migrate and delete topics"),
    "subscription": ("topics.subscription:app", "list, create, move and delete subscriptions"),
    "lane": ("topics.lane:app", "list, show, peek into, release and skip the lanes of stuck keys"),
    "tenant": ("cluster.tenant:app", "create, list, show and delete tenants, and name their admins"),
    "namespace": ("cluster.namespace:app", "create, list, show and delete namespaces"),
    "policy": ("cluster.policy:app", "show, set and remove the policies of namespaces and topics"),
    "schema": ("topics.schema:app", "show, add and delete the registered schemas of topics"),
    "permissions": ("cluster.permissions:app", "show, grant and revoke the rights of roles"),
    "quotas": ("cluster.quotas:app", "show, set and remove the quotas of tenants and namespaces"),
    "brokers": (
        "cluster.brokers:brokers",
        "list the running brokers and the stores that each of them serves",
    ),
    "token": ("server.token:app", "make keys and tokens, and look into tokens"),
    "doctor": (
        "server.doctor:doctor",
        "name the weak points of a configuration, its files and a running broker",
    ),
    "store": ("server.store:app", "show, check or repair the data directory of a stopped broker"),
    "backup": ("server.backup:backup", "copy a data directory consistently, while brokers serve it or not"),
    "restore": (
        "server.backup:restore",
        "make a data directory from a backup, after verifying every byte of it",
    ),
    "secret": ("server.secret:app", "rotate the secret between the brokers of a data directory"),
    "pipeline": (
        "pipelines.pipeline:app",
        "archive, load, replay, compact, verify, weigh and mirror topics with Spark",
    ),
    "sink": ("pipelines.sink:app", "list, clean and remove the logs of Spark's exactly-once sinks"),
    "bench": ("anabranch.bench.commands:app", "measure publishing, consuming and latency of any broker"),
    "completion": ("completion:completion", "print or install the completion of a shell"),
}
"""By name: the module (in `anabranch.cli` unless it names another) and the object in it, and a short help."""


def make_app(chosen: str | None = None) -> App:
    """Make the tree; the help of the `chosen` command is its own, that of the others the short one."""
    app = App(
        name="anabranch",
        help="Elastic ordered streams: topics that split and merge by themselves, in key order.",
        help_epilogue=EXAMPLES,
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for number, (name, (place, about)) in enumerate(_COMMANDS.items()):
        more: dict[str, Any] = {} if place.endswith(":app") else {"help_epilogue": ""}
        if name != chosen:
            more["help"] = about
        path = place if place.startswith("anabranch.") else f"anabranch.cli.{place}"
        app.command(path, name=name, sort_key=number, **more)
    return app


def run_words(words: Sequence[str]) -> int:
    """Run the command; raises SystemExit for wrong usage."""
    app = make_app(words[0] if words else None)
    if any(word.partition("=")[0] in SECRET_OPTIONS for word in words):
        _leave(app, words, _SECRET)
    try:
        command, bound, _ = app.parse_args(words)
        if _shows_help(command):
            chain = [word for word in words if word not in HELP]
            shown = app.parse_commands(chain)[1][-1]
            shown.help = flowing(shown.help)
            if len(chain) == len(words):
                _leave_with_help(app, words)
        return int(command(*bound.args, **bound.kwargs) or 0)
    except CycloptsError as error:
        _leave(app, words, f"{_text_of(error, app)} (--help shows the options)")
    except UsageError as error:
        _leave(app, words, f"{error} (--help shows the options)")


_SECRET = (
    "a secret in the arguments can be read by every user of this machine; put it into a file (--token-file) "
    "or into the environment (ANABRANCH_TOKEN)"
)


def _shows_help(command: Callable[..., Any]) -> bool:
    return getattr(command, "__name__", "") == "help_print"


def flowing(text: str) -> str:
    """Return the text with each paragraph on one line, which the terminal breaks where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _text_of(error: CycloptsError, app: App) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"too many words: {' '.join(error.unused_tokens or ())}"
    if isinstance(error, MissingArgumentError) and error.keyword is not None:
        return f"{error.keyword} needs a value"
    # With a mistyped option among the words, the library names the option that may have been meant.
    mistyped = any(word.startswith("-") for word in error.unused_tokens or ())
    if isinstance(error, MissingArgumentError) and error.argument is not None and not mistyped:
        return f"{error.argument.name} is missing"
    if not isinstance(error, UnknownCommandError):
        return str(error)
    word = error.unused_tokens[0] if error.unused_tokens else ""
    group = app
    for name in error.command_chain or ():
        group = group[name]
    names = [name for name in group if not name.startswith("-")]
    close = get_close_matches(word, names, n=1)
    return f"no command is called {word!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _leave(app: App, words: Sequence[str], text: str) -> NoReturn:
    chain = app.parse_commands(words)[0]
    print(f"usage: {' '.join(['anabranch', *chain])} ...", file=sys.stderr)
    print(f"anabranch: {text}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _leave_with_help(app: App, words: Sequence[str]) -> NoReturn:
    from rich.console import Console

    app.help_print(words, console=Console(stderr=True))
    print("anabranch: name one of these commands", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _version() -> str:
    from anabranch.protocol.connection import SERVER_VERSION

    return SERVER_VERSION.lower()
