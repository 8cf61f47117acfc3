"""Arguments, results and pushes of each verb of a port reach another broker unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from anabranch import errors
from anabranch.admin.models.body import Body
from anabranch.broker.browsing.logs import LOGS, Logs
from anabranch.broker.cluster.remote_calls import Port, Verb, encode_value, error_named
from anabranch.broker.cluster.routing import LEADER, SEGMENTS
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Segments
from anabranch.errors import AnabranchError, RemoteProtocolError
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from tests.properties.layouts import layouts

PORTS: list[tuple[Port[Any], Any]] = [(SEGMENTS, Segments), (LEADER, TopicLeader), (LOGS, Logs)]
VERBS = [(verb, getattr(protocol, name)) for port, protocol in PORTS for name, verb in port.verbs.items()]

ranges = st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(lambda ends: HashRange(*sorted(ends)))
locals_ = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=10)
topics = st.builds(lambda local: TopicName("topic", "public", "default", local), locals_)
names = topics | st.builds(
    lambda topic, part, id_: topic.segment_name(part, id_), topics, ranges, st.integers(0, 99)
)

st.register_type_strategy(HashRange, ranges)
st.register_type_strategy(TopicName, names)
st.register_type_strategy(Layout, layouts(steps=2))
st.register_type_strategy(Sequence, lambda kind: st.lists(st.from_type(get_args(kind)[0]), max_size=5))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(object, st.none() | st.integers(0, 9) | st.text() | st.lists(st.text()))


def values(kind: Any) -> st.SearchStrategy[Any]:
    return st.from_type(dict[str, object] if kind == dict[str, Any] else kind)


def later(kind: Any) -> st.SearchStrategy[Any]:
    """The values of a type that may not be registered yet."""
    return st.deferred(lambda: values(kind))


for body in Body.__subclasses__():
    # Otherwise the default of a list or dict would be drawn, which is a factory.
    fields = {one.name: later(one.type) for one in structs.fields(body)}
    st.register_type_strategy(body, st.builds(body, **fields))


def is_push(kind: Any) -> bool:
    return get_origin(kind) is Callable


@pytest.mark.parametrize(("verb", "function"), VERBS, ids=[made.__qualname__ for _, made in VERBS])
@settings(max_examples=25)
@given(st.data())
def test_arguments_results_and_pushes_arrive_as_they_were(
    verb: Verb, function: Any, data: st.DataObject
) -> None:
    hints = get_type_hints(function)
    result = data.draw(values(hints.pop("return")))
    assert verb.decode_result(encode_value(result)) == result
    sent: dict[str, Any] = {
        name: data.draw(values(kind)) for name, kind in hints.items() if not is_push(kind)
    }
    assert verb.decode_arguments(verb.encode_arguments(sent)) == sent
    pushes = {name: print for name, kind in hints.items() if is_push(kind)}
    assert verb.bind(**sent, **pushes).arguments == {**sent, **pushes}
    for kind in filter(is_push, hints.values()):
        value = data.draw(st.from_type(get_args(kind)[0][0]))
        assert verb.decode_push(encode_value(value)) == value


def test_an_absent_argument_has_its_default_at_the_other_broker() -> None:
    verb = LEADER.verb("split")
    sent = verb.encode_arguments(verb.bind(7).arguments)
    assert verb.decode_arguments(sent) == {"segment_id": 7, "points": None, "expected": None}
    with pytest.raises(TypeError):
        verb.bind(7, nothing=1)


@given(st.binary())
def test_bytes_that_are_no_arguments_are_refused(data: bytes) -> None:
    verb = SEGMENTS.verb("create")
    try:
        found = verb.decode_arguments(data)
    except RemoteProtocolError:
        return
    assert verb.decode_arguments(verb.encode_arguments(found)) == found


def test_an_error_comes_back_as_its_own_class() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AnabranchError)
    ]
    assert len(kinds) > 30
    for kind in kinds:
        error = error_named(kind.__name__, "why")
        assert (type(error), str(error)) == (kind, "why")
    assert isinstance(error_named("annotations", "why"), errors.UnknownServerError)
    assert isinstance(error_named("ZeroDivisionError", "why"), errors.UnknownServerError)
