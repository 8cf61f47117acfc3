"""The options of the pipelines that check, weigh and copy topics. Imports nothing that takes time."""

from __future__ import annotations

from anabranch.cli.pipeline_options import TOPIC_HELP, add_one, add_shared, add_state
from anabranch.cli.topic_parser import Commands


def add_proof_pipelines(actions: Commands) -> None:
    _add_verify(actions)
    _add_skew(actions)
    _add_mirror(actions)


def _add_verify(actions: Commands) -> None:
    parser = add_one(
        actions,
        "verify",
        "prove that a topic lost, doubled and reordered nothing, or name the places",
        "Checks positions, the layout, and the sequence ids of each producer and key; with the application's "
        "own sequence also what producers sent. Exit code 1 if it finds a fault.",
    )
    parser.add_argument("topic", help=TOPIC_HELP)
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--sequence-header",
        metavar="NAME",
        help="header with the application's own number, which rises by one from message to message of a key",
    )
    number.add_argument(
        "--sequence-path", metavar="PATH", help="JSON path of that number in the value, such as $.number"
    )
    parser.add_argument(
        "--sequence-first", type=int, metavar="N", help="the first number of each key (any number)"
    )
    parser.add_argument(
        "--dense-producers",
        action="store_true",
        help="a sequence id that a producer skipped is a lost message",
    )
    parser.add_argument(
        "--complete", action="store_true", help="messages that retention removed are lost messages"
    )
    parser.add_argument(
        "--clock-tolerance",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how far the publish times of a producer may step back (60)",
    )
    add_shared(parser)


def _add_skew(actions: Commands) -> None:
    parser = add_one(
        actions,
        "skew",
        "weigh the keys and hash slots of a topic over time, and suggest splits",
        "Prints the commands `anabranch topic split --points` and `anabranch topic rebucket --boundaries` "
        "that would share the weight evenly.",
    )
    parser.add_argument("topic", help=TOPIC_HELP)
    parser.add_argument(
        "--by", choices=["messages", "bytes"], default="messages", help="what to weigh (messages)"
    )
    parser.add_argument(
        "--segments", type=int, metavar="N", help="number of segments to aim at (as many as there are)"
    )
    parser.add_argument(
        "--interval",
        type=int,
        metavar="SECONDS",
        help="length of an interval (a round one, at most 48 of them)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="also write a picture, .png or .svg; needs `anabranch[plot]`"
    )
    add_shared(parser)


def _add_mirror(actions: Commands) -> None:
    parser = add_one(
        actions,
        "mirror",
        "copy a topic to another topic, on any broker, each message exactly once",
        "Keeps the order of each key, headers, event times and tombstones. The layouts of the two topics are "
        "independent. Runs until it is interrupted, and resumes where it was.",
    )
    parser.add_argument("source", metavar="from", help=TOPIC_HELP)
    parser.add_argument("target", metavar="to", help="the topic to write; it is created if it does not exist")
    parser.add_argument("--once", action="store_true", help="end when all messages so far are copied")
    parser.add_argument(
        "--interval",
        default="1 second",
        metavar="TIME",
        help="look for new messages at this interval, such as '10 seconds' (1 second)",
    )
    parser.add_argument(
        "--start",
        default="earliest",
        metavar="OFFSETS",
        help="earliest, latest or the JSON of a cut, for a new copy (earliest)",
    )
    other = parser.add_argument_group("broker of the target, if it is another one")
    other.add_argument("--to-url", metavar="URL", help="its address")
    other.add_argument(
        "--to-token-file", metavar="FILE", help="file with the token that proves the role there"
    )
    other.add_argument("--to-client-conf", metavar="FILE", help="file like Pulsar's client.conf")
    other.add_argument(
        "--to-option", action="append", default=[], metavar="NAME=VALUE", help="an option of the Spark sink"
    )
    add_state(parser, "anabranch-state/mirror-..., from both topics and brokers")
    add_shared(parser)
