"""The names that applications see: each public class has exactly these, so a callback cannot slip in."""

from __future__ import annotations

import inspect
from types import FunctionType

import pytest

import anabranch
from anabranch import errors
from anabranch.apps import App, Bench, BenchPublished, HandlerOptions
from anabranch.testing.local_broker import LocalBroker

ADMIN = """
    add_schema auto_scale_policy backlog_size brokers call check_schema classic_properties classic_stats
    classic_topics close cluster clusters create_classic_topic create_namespace create_subscription
    create_tenant create_topic delete_classic_topic delete_namespace delete_property delete_schema
    delete_subscription delete_tenant delete_topic find_schema grant grant_on_topics grow_partitions
    internal_configuration internal_stats lane lanes last_message_id list_topics lookup merge message
    message_id_at migrate namespace_policies namespace_properties namespaces partitioned_stats partitions
    peek peek_lane permissions policy quotas rebucket release_lane remove_policy reserve_subscription
    revoke revoke_on_topics schema schemas seek segment_stats send set_auto_scale_policy
    set_classic_properties set_namespace_properties set_policy set_properties set_quotas set_tenant_admins
    skip_all skip_lane split subscription_figures subscription_roles subscriptions tenant tenant_admins
    tenants terminate topic_metadata topic_stats usage version why
"""

NAMES = {
    "AdminClient": ADMIN,
    "AsyncAdminClient": ADMIN,
    "AnabranchError": "retryable",
    "App": "bench publish run subscriber",
    "AsyncCheckpointConsumer": """
        bad_entry_count checkpoint close commit pause paused receive receive_many resume state topic
    """,
    "AsyncClient": """
        close closed create_checkpoint_consumer create_producer layout shutdown stats subscribe_queue
        subscribe_stream subscribe_topics topic_schema topics
    """,
    "AsyncProducer": """
        bucket_fills close enqueue enqueue_many flush is_connected last_sequence_id message_bytes_max send
        send_many state stats topic
    """,
    "AsyncQueueConsumer": """
        acknowledge bad_entry_count close flush_acks negative_acknowledge pause paused processing receive
        receive_many reconsume_later release_parked resume run run_statistics seek state topic unsubscribe
    """,
    "AsyncStreamConsumer": """
        acknowledge_cumulative assignment awaited bad_entry_count close flush_acks pause paused receive
        receive_many release_parked resume run run_statistics seek state topic unsubscribe
    """,
    "AsyncTopicsConsumer": """
        acknowledge acknowledge_cumulative close flush_acks negative_acknowledge pause paused receive
        receive_many reconsume_later resume seek topics unsubscribe
    """,
    "Authentication": "auth_data method_name",
    "AuthenticationBasic": "auth_data from_parameters http_headers",
    "AuthenticationOauth2": "auth_data from_parameters http_headers method_name renew",
    "AuthenticationTLS": "auth_data from_parameters http_headers method_name",
    "AuthenticationToken": "auth_data from_parameters http_headers method_name",
    "Backoff": "delay delays initial jitter maximum multiplier",
    "Batching": "max_bytes max_delay max_messages",
    "Checkpoint": """
        at_ms earliest from_bytes is_latest is_regular kind latest merge parts positions slots timestamp_ms
        to_bytes
    """,
    "CheckpointConsumer": """
        bad_entry_count checkpoint close commit name pause paused receive receive_many resume state topic
    """,
    "Client": """
        close closed create_checkpoint_consumer create_producer layout shutdown stats subscribe_queue
        subscribe_stream subscribe_topics topic_schema topics
    """,
    "DeadLetter": "encryption initial_subscription max_redeliveries policy topic",
    "Decrypt": "keys on_failure",
    "Encrypt": "key_names on_failure rotate_after rotate_after_s",
    "EncryptionContext": "algorithm batch_size compression keys nonce uncompressed_size wrapped",
    "EncryptionKey": "count index metadata pem",
    "Interceptor": """
        before_send handling on_acknowledge on_close on_negative_acknowledge on_receipt on_receive
    """,
    "Message": """
        data encryption event_time id key key_bytes producer_name properties publish_time redelivery_count
        require_value sequence_id size topic value
    """,
    "MessageId": """
        batch_index batch_size classic_bytes cross earliest entry first_chunk from_bytes latest ledger
        next_index partition position segment to_bytes topic vector
    """,
    "PemFiles": "",
    "Producer": """
        bucket_fills close enqueue enqueue_many flush is_connected last_sequence_id message_bytes_max name
        send send_many state stats topic
    """,
    "QueueConsumer": """
        acknowledge bad_entry_count close flush_acks name negative_acknowledge pause paused processing
        receive receive_many reconsume_later release_parked resume run run_statistics seek state
        subscription topic unsubscribe
    """,
    "RunStatistics": """
        dead_letters failed handled in_flight keys_paused keys_ready parked timed_out waiting waiting_bytes
    """,
    "Schema": """
        auto_consume avro bool by_writer bytes decode decoder definition encode float32 float64 int16 int32
        int64 int8 json key_decoder key_value protobuf string
    """,
    "SchemaError": "retryable",
    "SentMessage": "event_time key notes producer_name properties size topic value",
    "StreamConsumer": """
        acknowledge_cumulative assignment awaited bad_entry_count close flush_acks name pause paused receive
        receive_many release_parked resume run run_statistics seek state subscription topic unsubscribe
    """,
    "TopicsConsumer": """
        acknowledge acknowledge_cumulative close flush_acks negative_acknowledge pause paused receive
        receive_many reconsume_later resume seek subscription topics unsubscribe
    """,
}
"""The public names of each public class; errors have those of `Exception` too."""


def public_names(kind: type) -> list[str]:
    inherited = dir(Exception) if issubclass(kind, Exception) else []
    return sorted(name for name in dir(kind) if not name.startswith("_") and name not in inherited)


def test_every_public_class_is_listed() -> None:
    assert sorted(NAMES) == sorted(anabranch.__all__)


@pytest.mark.parametrize("name", anabranch.__all__)
def test_a_class_shows_exactly_its_listed_names(name: str) -> None:
    assert public_names(getattr(anabranch, name)) == sorted(NAMES[name].split())


def undocumented(kind: type) -> list[str]:
    """The public methods and properties of a class that have no docstring."""
    found = ((name, inspect.getattr_static(kind, name)) for name in public_names(kind))
    kinds = (FunctionType, property, staticmethod, classmethod)
    return [name for name, part in found if isinstance(part, kinds) and not inspect.getdoc(part)]


@pytest.mark.parametrize("name", anabranch.__all__)
def test_every_public_method_has_a_docstring(name: str) -> None:
    assert undocumented(getattr(anabranch, name)) == []


def test_what_is_public_beside_the_package_has_docstrings_too() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds += [App, Bench, BenchPublished, HandlerOptions, LocalBroker]
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []
    assert [undocumented(kind) for kind in (App, Bench, LocalBroker)] == [[], [], []]
