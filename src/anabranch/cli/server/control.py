"""`anabranch control`: a control process over an Apache Pulsar cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from anabranch.cli.options import Settings
from anabranch.cli.server.serve import ListenWords
from anabranch.cli.server.serving import ServeOptions, load_settings
from anabranch.credentials.authentication import AuthenticationTLS, AuthenticationToken
from anabranch.credentials.secret_sources import read_file
from anabranch.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from anabranch.control.node import OpenStore


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterWords:
    """The cluster, and the credentials of a control process there."""

    pulsar_admin: Annotated[
        str, Parameter(metavar="URL", help="admin API of the cluster: http://host:port[,host:port...]")
    ]
    metadata: Annotated[
        str, Parameter(metavar="URL", help="the cluster's ZooKeeper: zk://host:port[,host:port...]/path")
    ]
    pulsar: Annotated[
        str | None, Parameter(metavar="URL", help="service URL of the cluster; it must answer at the start")
    ] = None
    pulsar_token_file: Annotated[
        str | None, Parameter(metavar="FILE", help="a token of a role with admin rights at Pulsar")
    ] = None
    pulsar_trust_certs: Annotated[
        str | None, Parameter(metavar="FILE", help="trusted authorities of Pulsar's certificates, as PEM")
    ] = None
    pulsar_certificate: Annotated[
        str | None, Parameter(metavar="FILE", help="certificate to show to Pulsar, as PEM")
    ] = None
    pulsar_key: Annotated[
        str | None, Parameter(metavar="FILE", help="the key of that certificate, as PEM")
    ] = None
    metadata_credentials_file: Annotated[
        str | None, Parameter(metavar="FILE", help="user:password for ZooKeeper's digest authentication")
    ] = None
    metadata_trust_certs: Annotated[
        str | None, Parameter(metavar="FILE", help="trusted authorities of ZooKeeper's certificates, as PEM")
    ] = None
    metadata_certificate: Annotated[
        str | None, Parameter(metavar="FILE", help="certificate to show to ZooKeeper, as PEM")
    ] = None
    metadata_key: Annotated[
        str | None, Parameter(metavar="FILE", help="the key of that certificate, as PEM")
    ] = None
    session_s: Annotated[
        float, Parameter(metavar="S", help="how long ZooKeeper keeps the session of a silent process (10)")
    ] = 10.0


LISTEN_WORDS: Final = ListenWords()


def control(
    *,
    cluster: ClusterWords,
    at: ListenWords = LISTEN_WORDS,
    config: Annotated[
        str | None, Parameter(metavar="FILE", help="read settings from this file first, as `anabranch serve`")
    ] = None,
    sets: Settings = (),
) -> int:
    """Lead scalable topics whose segments are topics of an Apache Pulsar 4 cluster.

    Any number of control processes may run, on any machines; clients and admin calls may use any of them. A
    control process keeps nothing on its machine: records are in the cluster's ZooKeeper, messages in Pulsar.
    When it accepts connections it prints `ready pulsar://HOST:PORT http://HOST:PORT`.
    """
    from anabranch.control.node import ControlOptions, check_answers, run
    from anabranch.control.pulsar_admin import admin_urls

    settings = load_settings(ServeOptions(config, (*sets, *at.settings())))
    # The session is the lease of a control process: calls at other processes wait so long for its successor.
    settings = replace(settings, lease_s=cluster.session_s)
    if cluster.pulsar is not None:
        check_answers(cluster.pulsar)
    options = ControlOptions(
        admin_urls(cluster.pulsar_admin),
        _store_opener(cluster),
        _authentication(cluster),
        cluster.pulsar_trust_certs,
    )
    return run(settings, options)


def _store_opener(words: ClusterWords) -> OpenStore:
    from anabranch.metadata.zookeeper.zookeeper_paths import ZookeeperAddress
    from anabranch.metadata.zookeeper.zookeeper_store import ZookeeperOptions, ZookeeperStore, ZookeeperTls

    url = words.metadata
    ZookeeperAddress.parse(url)
    file = words.metadata_credentials_file
    options = ZookeeperOptions(
        session_s=words.session_s,
        credentials=None if file is None else read_file(Path(file)).strip(),
        tls=ZookeeperTls(words.metadata_trust_certs, words.metadata_certificate, words.metadata_key),
    )
    return lambda lost: ZookeeperStore(url, options, lost=lost)


def _authentication(words: ClusterWords) -> AuthenticationToken | AuthenticationTLS | None:
    token, certificate = words.pulsar_token_file, words.pulsar_certificate
    if token is not None and certificate is not None:
        raise InvalidConfigurationError("give --pulsar-token-file or --pulsar-certificate, not both")
    if certificate is not None:
        if words.pulsar_key is None:
            raise InvalidConfigurationError("--pulsar-certificate needs --pulsar-key")
        return AuthenticationTLS(certificate, words.pulsar_key)
    return None if token is None else AuthenticationToken(f"file://{Path(token).absolute()}")
