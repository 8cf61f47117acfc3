"""The options of `anabranch quotas`. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.topic_parser import Commands, add_admin_options

_SET = """\
quotas of a tenant:
  maxConnections, maxNamespaces, maxTopics, maxSubscriptions, maxProducers, maxConsumers,
  publishRate, dispatchRate
quotas of a namespace, as Pulsar names them:
  maxProducersPerTopic, maxConsumersPerTopic, maxConsumersPerSubscription, maxSubscriptionsPerTopic,
  maxTopicsPerNamespace, publishRate, dispatchRate, subscriptionDispatchRate
quotas of a topic, instead of those of its namespace:
  publishRate, dispatchRate, subscriptionDispatchRate

A count of 0 is no limit. A rate is MESSAGES, or MESSAGES,BYTES, each second; -1 is no limit. Examples:
  anabranch quotas set acme maxConnections=200 publishRate=5000,10MiB
  anabranch quotas set acme/orders maxProducersPerTopic=10 dispatchRate=-1,1MiB
  anabranch quotas set topic://acme/orders/paid publishRate=1000
"""


def add_quotas(commands: Commands) -> None:
    parser = commands.add_parser("quotas", help="show, set and remove the quotas of tenants and namespaces")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _action(
        actions, "show", "show the quotas of a tenant or namespace, and what a tenant uses of them"
    )
    show.add_argument("--json", action="store_true", help="print JSON")
    changed = _action(actions, "set", "set quotas; the others stay", _SET)
    changed.add_argument("quotas", nargs="+", metavar="NAME=VALUE", help="a quota and its value")
    removed = _action(actions, "remove", "remove quotas, all of them by default")
    removed.add_argument("names", nargs="*", metavar="NAME", help="a quota")


def _action(actions: Commands, name: str, about: str, epilog: str | None = None) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "of",
        metavar="TENANT[/NAMESPACE]",
        help="a tenant like acme, a namespace like acme/orders, or a topic like topic://acme/orders/paid",
    )
    add_admin_options(made)
    made.set_defaults(run=_run, action=name)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import quotas

    return quotas.run(arguments)
