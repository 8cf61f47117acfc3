from __future__ import annotations

import pytest

from anabranch.errors import AuthenticationError, RemoteProtocolError, ServiceNotReadyError
from anabranch.protocol.commands import NO_ID, Command, CommandCutter, Send, encode
from anabranch.protocol.connection import CLIENT_VERSION, SERVER_VERSION, ClientMachine, ServerMachine
from anabranch.protocol.frames import FrameCutter
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb

PING = encode(pb.CommandPing())
PONG = encode(pb.CommandPong())
FLOW = pb.CommandFlow(consumer_id=1, messagePermits=2)
ENTRY = bytes.fromhex("0e01 cf85822f 0000000c 0a017010001880d095ffbc31 68656c6c6f")


def connected(
    max_message_bytes: int = 5 * 2**20, keep_alive_s: float = 30.0
) -> tuple[ClientMachine, ServerMachine]:
    client = ClientMachine(now=0.0, keep_alive_s=keep_alive_s)
    server = ServerMachine(now=0.0, keep_alive_s=keep_alive_s, max_message_bytes=max_message_bytes)
    server.receive(client.start(), 1.0)
    client.receive(b"".join(server.take_output()), 1.0)
    assert client.established
    assert server.established
    return client, server


def connect_with(**fields: object) -> ServerMachine:
    command = pb.CommandConnect(client_version="test", protocol_version=21)
    for name, value in fields.items():
        setattr(command, name, value)
    server = ServerMachine(now=0.0)
    server.receive(encode(command), 0.0)
    return server


def answer_of(server: ServerMachine) -> Command:
    client = ClientMachine(now=0.0)
    (answer,) = client.receive(b"".join(server.take_output()), 0.0)
    return answer


def test_both_ends_learn_about_each_other() -> None:
    client = ClientMachine(now=0.0)
    server = ServerMachine(now=0.0, max_message_bytes=10**7)
    (connect,) = server.receive(client.start(), 1.0)
    assert isinstance(connect, pb.CommandConnect)
    assert server.peer_version == CLIENT_VERSION
    assert (server.peer_is_ours, server.peer_hears_end_of_topic) == (True, True)
    (answer,) = client.receive(b"".join(server.take_output()), 1.0)
    assert isinstance(answer, pb.CommandConnected)
    assert client.server_version == SERVER_VERSION
    assert client.max_message_bytes == 10**7
    assert client.server_features.supports_scalable_topics


def test_the_server_knows_java_and_old_clients() -> None:
    java = connect_with(client_version="Pulsar-Java-v5.0.0")
    assert (java.peer_is_ours, java.peer_hears_end_of_topic) == (False, True)
    old = pb.CommandConnect(client_version="Pulsar-CPP-v2", protocol_version=17)
    old.feature_flags.supports_broker_entry_metadata = True
    server = ServerMachine(now=0.0)
    server.receive(encode(old), 0.0)
    answer = answer_of(server)
    assert isinstance(answer, pb.CommandConnected)
    assert answer.protocol_version == 17


def test_features_are_what_the_broker_says() -> None:
    server = ServerMachine(now=0.0, features=pb.FeatureFlags(supports_topic_watchers=True))
    server.receive(ClientMachine(now=0.0).start(), 0.0)
    answer = answer_of(server)
    assert isinstance(answer, pb.CommandConnected)
    assert answer.feature_flags == pb.FeatureFlags(supports_topic_watchers=True)


@pytest.mark.parametrize(
    "frame",
    [encode(FLOW), b"".join(encode_send(1, 0, 1, 0, ENTRY)), encode(pb.CommandConnected(server_version="x"))],
)
def test_anything_before_connect_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="before CONNECT"):
        ServerMachine(now=0.0).receive(frame, 0.0)


def test_a_second_connect_is_refused() -> None:
    client, server = connected()
    with pytest.raises(RemoteProtocolError, match="twice"):
        server.receive(client.start(), 2.0)


def test_commands_behind_connect_are_handed_over_with_it() -> None:
    server = ServerMachine(now=0.0)
    commands = server.receive(ClientMachine(now=0.0).start() + PING + encode(FLOW), 0.0)
    assert [type(command) for command in commands] == [pb.CommandConnect, pb.CommandFlow]
    assert server.take_output()[1:] == [PONG]


def test_hot_commands_are_handed_over() -> None:
    _, server = connected()
    commands = server.receive(b"".join(encode_send(1, 0, 1, 0, ENTRY)) + PONG + encode(FLOW), 2.0)
    assert commands == [Send(1, 0, 1, 0, False, False, 0, 0, ENTRY), FLOW]


def test_the_client_refuses_other_answers_to_connect() -> None:
    with pytest.raises(RemoteProtocolError, match="answered CONNECT with Flow"):
        ClientMachine(now=0.0).receive(encode(FLOW), 0.0)


def test_an_error_instead_of_connected_is_raised_as_what_it_means() -> None:
    refusal = pb.CommandError(request_id=NO_ID, error=pb.AuthenticationError, message="no")
    with pytest.raises(AuthenticationError, match="no"):
        ClientMachine(now=0.0).receive(encode(refusal), 0.0)
    refusal.error = pb.ServiceNotReady
    with pytest.raises(ServiceNotReadyError):
        ClientMachine(now=0.0).receive(encode(refusal), 0.0)


def test_an_error_after_the_handshake_belongs_to_a_request() -> None:
    client, _ = connected()
    error = pb.CommandError(request_id=3, error=pb.TopicNotFound, message="no")
    assert client.receive(encode(error), 2.0) == [error]


def test_credentials_are_shown_at_connect_and_a_challenge_goes_to_the_owner() -> None:
    client = ClientMachine(now=0.0, auth_method="token", auth_data=b"secret")
    ((command, _),) = FrameCutter().feed(client.start())
    assert b"secret" in command
    asked = pb.CommandAuthChallenge(server_version="x")
    challenge = encode(asked)
    for _ in range(10):
        assert client.receive(challenge, 0.0) == [asked]
    assert client.take_output() == []
    with pytest.raises(RemoteProtocolError, match="credentials"):
        client.receive(challenge, 0.0)


def test_a_refresh_of_credentials_may_come_at_any_time() -> None:
    client, _ = connected()
    for _ in range(20):
        assert client.receive(encode(pb.CommandAuthChallenge()), 2.0) == [pb.CommandAuthChallenge()]


def test_the_answer_to_a_challenge_has_the_method_and_the_new_credentials() -> None:
    client = ClientMachine(now=0.0, auth_method="token", auth_data=b"old")
    (answer,) = CommandCutter().read(client.auth_response(b"new"))
    assert isinstance(answer, pb.CommandAuthResponse)
    assert answer.response == pb.AuthData(auth_method_name="token", auth_data=b"new")


def test_connect_says_that_the_client_answers_challenges() -> None:
    (connect,) = CommandCutter().read(ClientMachine(now=0.0).start())
    assert isinstance(connect, pb.CommandConnect)
    assert connect.feature_flags.supports_auth_refresh


def test_ping_is_answered_in_any_state() -> None:
    server = ServerMachine(now=0.0)
    assert server.receive(PING + PING, 0.0) == []
    assert server.take_output() == [PONG, PONG]
    assert server.take_output() == []
    client = ClientMachine(now=0.0)
    assert client.receive(PING, 0.0) == []
    assert client.take_output() == [PONG]


@pytest.mark.parametrize("sent", [PING, b"\0"])
def test_neither_pings_nor_single_bytes_extend_the_time_for_the_handshake(sent: bytes) -> None:
    server = ServerMachine(now=0.0, keep_alive_s=30.0, handshake_s=10.0)
    for second in range(7):
        server.receive(sent, float(second))
    assert server.tick_at == 10.0
    assert server.tick(9.9)
    assert not server.tick(10.0)


def test_after_the_handshake_the_time_for_it_is_over() -> None:
    server = ServerMachine(now=0.0, keep_alive_s=30.0, handshake_s=10.0)
    server.receive(ClientMachine(now=0.0).start(), 9.0)
    assert server.tick_at == 39.0
    assert server.tick(10.0)


def test_a_quiet_peer_is_pinged_and_then_dropped() -> None:
    _, server = connected(keep_alive_s=30.0)
    assert server.tick_at == 31.0
    assert server.tick(30.0)
    assert server.take_output() == []
    assert server.tick(31.0)
    assert server.take_output() == [PING]
    assert server.tick(45.0)
    assert not server.tick(61.0)


@pytest.mark.parametrize("sign", [PONG, PING, encode(FLOW)])
def test_any_sign_of_life_counts(sign: bytes) -> None:
    _, server = connected()
    server.tick(31.0)
    server.receive(sign, 60.0)
    server.take_output()
    assert server.tick(61.0)
    assert server.take_output() == [PING]
    assert not server.tick(91.0)


def test_a_peer_that_never_finishes_its_frame_is_dropped() -> None:
    _, server = connected()
    frame = encode(FLOW)
    server.receive(frame[:4], 2.0)
    for position in range(4, len(frame) - 1):
        server.receive(frame[position : position + 1], 20.0 + position)
    assert server.tick(31.0)
    server.receive(frame[-1:-1], 60.0)
    assert not server.tick(61.0)


def test_a_large_frame_on_a_slow_link_is_a_sign_of_life() -> None:
    _, server = connected()
    large = b"".join(encode_send(1, 0, 1, 0, bytes(2**20)))
    server.receive(large[:1000], 30.0)
    for tick, part in enumerate((large[1000:200_000], large[200_000:400_000]), 1):
        assert server.tick(1.0 + 30 * tick)
        server.receive(part, 2.0 + 30 * tick)
    assert server.tick(91.0)
    assert server.partial_bytes == 400_000
    assert not server.tick(121.0)


def test_silence_proves_nothing_while_reading_is_paused() -> None:
    _, server = connected()
    server.tick(31.0)
    assert server.tick(61.0, reading=False)
    assert not server.tick(91.0)


def test_the_frame_limit_changes_on_both_ends_with_the_handshake() -> None:
    large = b"".join(encode_send(1, 0, 1, 0, bytes(6 * 2**20)))
    with pytest.raises(RemoteProtocolError, match="limit is 5253120"):
        ClientMachine(now=0.0).receive(large, 0.0)
    with pytest.raises(RemoteProtocolError, match="limit is 65536"):
        ServerMachine(now=0.0, max_message_bytes=10 * 2**20).receive(large[:8], 0.0)
    client, server = connected(max_message_bytes=10 * 2**20)
    assert len(server.receive(large, 2.0)) == 1
    assert len(client.receive(large, 2.0)) == 1
    client, server = connected(max_message_bytes=1000)
    for machine in (client, server):
        with pytest.raises(RemoteProtocolError, match="limit is 11240"):
            machine.receive(large, 2.0)


def test_a_server_that_names_no_limit_has_the_default_one() -> None:
    client = ClientMachine(now=0.0)
    client.receive(encode(pb.CommandConnected(server_version="old")), 0.0)
    assert client.max_message_bytes == 5 * 2**20
