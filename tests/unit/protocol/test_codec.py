"""Messages as bytes and back, and the refusal of other bytes."""

import os
import subprocess
import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT, inspect
from msgspec.structs import fields, replace
from rdzv_protocol import messages
from rdzv_protocol.codec import decode, decode_own, encode
from rdzv_protocol.constraints import MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES
from rdzv_protocol.errors import MalformedMessage, MessageTooLarge
from rdzv_protocol.messages import Finish, JoinRequest, PollRequest, Reply, ReportRequest, Wait
from rdzv_protocol.settings import RequestedSettings, RunSettings
from rdzv_protocol.words import codec as words

from rdzv_server.core.events import JoinTimedOut, NodeJoined, SnapshotPart
from tests.support.cases import case
from tests.support.message_search import has_message, pattern
from tests.support.messages import KINDS, PARTS, values

ID = words.a_text(1, 256, is_visible=True)
WIDE = "\N{GRINNING FACE}"

POLL = {"run_id": "run", "agent_id": "a", "revision": 7}
JOIN = POLL | {
    "node_id": "n",
    "after_round": 0,
    "addr": "10.0.0.1",
    "port": 29_500,
    "local_world_size": 8,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_arrives_as_it_was_sent(kind):
    @given(values(kind))
    def round_trip(message):
        assert decode(kind, encode(message)) == message

    round_trip()


def unlimited(kind: Any, where: str) -> list[str]:
    """Return the parts of a type that have no limit."""
    match kind:
        case inspect.UnionType(types=types):
            return [free for each in types for free in unlimited(each, where)]
        case inspect.VarTupleType(item_type=item, max_length=most):
            return ([] if most else [where]) + unlimited(item, f"{where}[]")
        case inspect.StrType(max_length=most):
            return [] if most else [where]
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            return [] if None not in (low, high) else [where]
        case (
            inspect.BoolType() | inspect.NoneType() | inspect.LiteralType() | inspect.EnumType() | inspect.StructType()
        ):
            return []
    return [where]


def test_every_message_is_frozen_and_every_field_has_a_limit():
    for kind in [*PARTS, RunSettings]:
        with case(kind):
            assert kind.__struct_config__.frozen
            fields = inspect.type_info(kind).fields
            assert [free for field in fields for free in unlimited(field.type, field.name)] == []


# Messages of a peer of another version.


def test_unknown_fields_are_ignored():
    body = msgpack.packb(POLL | {"colour": "blue", "nested": {"a": [1, {}]}})
    assert decode(PollRequest, body) == PollRequest(run_id="run", agent_id="a", revision=7)


def test_a_field_that_is_left_out_takes_its_default():
    join = decode(JoinRequest, msgpack.packb(JOIN))
    assert (join.role, join.node_rank, join.settings) == ("default", None, RequestedSettings())


def test_settings_that_are_not_requested_are_not_sent():
    join = replace(decode(JoinRequest, msgpack.packb(JOIN)), settings=RequestedSettings(min_nodes=2))
    body = msgpack.unpackb(encode(join))
    assert body["settings"] == {"min_nodes": 2}
    assert decode(JoinRequest, msgpack.packb(body)) == join


@pytest.mark.parametrize(
    "fact",
    [
        JoinTimedOut(),
        SnapshotPart(b"\xff\x00", is_last=True),
        NodeJoined(decode(JoinRequest, msgpack.packb(JOIN)), "h", replaces=tuple(f"{n:0>200}" for n in range(2_000))),
    ],
    ids=["no fields", "bytes", "larger than a message"],
)
def test_records_that_the_program_has_written_itself_are_always_read(fact):
    assert decode_own(type(fact), encode(fact)) == fact


def test_a_path_that_is_not_utf_8_is_sent_as_far_as_it_is():
    path = os.fsdecode(b"/logs/\xff\xc3\xbc")
    assert decode(Wait, encode(Wait(reason=path, remaining_s=1.0))).reason == "/logs/?\xfc"


def test_bytes_travel_as_they_are():
    data = bytes(range(256))
    encoded = encode(SnapshotPart(data, is_last=True))
    assert data in encoded and len(encoded) < len(data) + 25


def test_an_integer_is_accepted_as_a_number():
    join = decode(JoinRequest, msgpack.packb(JOIN | {"settings": {"lease_s": 10}}))
    assert join.settings.lease_s == 10.0
    assert isinstance(join.settings.lease_s, float)


def test_directives_are_distinguished_by_their_tag():
    wait, finish = Wait(reason="soon"), Finish(succeeded=True, reason="soon")
    for directive in (wait, finish):
        with case(directive):
            reply = Reply(epoch="e", revision=1, lease_s=10.0, directive=directive)
            assert type(decode(Reply, encode(reply)).directive) is type(directive)


# Refusals, and their codes.


def refusal(kind: type, body: Any) -> str:
    with pytest.raises(MalformedMessage) as error:
        decode(kind, body if isinstance(body, bytes) else msgpack.packb(body))
    return str(error.value)


def test_every_required_field_is_named_when_it_is_missing():
    required = [field.name for field in fields(JoinRequest) if field.default is field.default_factory is NODEFAULT]
    assert len(required) == 7
    for name in required:
        with case(name):
            body = {key: value for key, value in JOIN.items() if key != name}
            assert refusal(JoinRequest, body) == words.missing(f"JoinRequest.{name}")


PORT = words.an_integer(1, 65_535)


@pytest.mark.parametrize(
    ("field", "value", "wanted", "found"),
    [
        ("run_id", 5, ID, "5"),
        ("run_id", b"run", ID, "b'run'"),
        ("run_id", None, ID, "None"),
        ("run_id", "", ID, "''"),
        ("run_id", "x" * 257, ID, words.a_long_text("x" * 257)),
        ("run_id", "two\nlines", ID, r"'two\nlines'"),
        ("port", "29500", PORT, "'29500'"),
        ("port", True, PORT, "True"),
        ("port", 1.0, PORT, "1.0"),
        ("port", 0, PORT, "0"),
        ("port", 65_536, PORT, "65536"),
        ("port", 2**64 - 1, PORT, "18446744073709551615"),
        ("local_world_size", 0, words.an_integer(1, 4_096), "0"),
        ("node_rank", -1, words.an_integer(0, 10_000_000), "-1"),
        ("rerun", 1, words.A_BOOLEAN, "1"),
        ("settings", [], words.A_MAP, "()"),
        ("settings", msgpack.ExtType(5, b"x"), words.A_MAP, words.a_list_of(2)),
    ],
)
def test_a_wrong_field_is_named_with_the_problem(field, value, wanted, found):
    assert refusal(JoinRequest, JOIN | {field: value}) == words.unexpected(f"JoinRequest.{field}", wanted, found)


SCALE_UP = words.one_of(["cooldown", "immediate", "manual", "on-notice"])
LEASE, JOIN_TIMEOUT = words.a_number(0.1, 86_400), words.a_number(0, 1e7)


@pytest.mark.parametrize(
    ("name", "value", "path", "wanted", "found"),
    [
        ("scale_up", "never", "", SCALE_UP, "'never'"),
        ("scale_up", 3, "", SCALE_UP, "3"),
        ("lease_s", 0, "", LEASE, "0"),
        ("lease_s", float("nan"), "", LEASE, "nan"),
        ("join_timeout_s", float("inf"), "", JOIN_TIMEOUT, "inf"),
        ("join_timeout_s", "600", "", JOIN_TIMEOUT, "'600'"),
        ("fatal_exit_codes", 3, "", words.a_list(32), "3"),
        ("fatal_exit_codes", [1, 999], "[1]", words.an_integer(-255, 255), "999"),
        ("fatal_exit_codes", [1] * 33, "", words.a_list(32), words.a_list_of(33)),
    ],
)
def test_a_wrong_setting_is_named_by_its_path(name, value, path, wanted, found):
    says = words.unexpected(f"JoinRequest.settings.{name}{path}", wanted, found)
    assert refusal(JoinRequest, JOIN | {"settings": {name: value}}) == says


TAGS = words.one_of(["wait", "start", "stop", "drain", "finish"])
DIRECTIVE = "Reply.directive"


@pytest.mark.parametrize(
    ("directive", "complaint"),
    [
        (None, words.unexpected(DIRECTIVE, words.A_MAP, "None")),
        ({}, words.missing_tag(f"{DIRECTIVE}.tag", TAGS)),
        *(
            ({"tag": tag, "reason": "so"}, words.unexpected(f"{DIRECTIVE}.tag", TAGS, ""))
            for tag in (None, "explode", 3, ["wait"])
        ),
        ({"tag": "stop", "reason": "so"}, words.missing(f"{DIRECTIVE}.round")),
        (
            {"tag": "stop", "reason": "so", "round": -1},
            words.unexpected(f"{DIRECTIVE}.round", words.an_integer(0, 2**31), "-1"),
        ),
    ],
)
def test_a_wrong_directive_is_named_with_the_problem(directive, complaint):
    reply = {"epoch": "e", "revision": 1, "lease_s": 1, "directive": directive}
    assert refusal(Reply, reply).startswith(complaint)


def test_a_key_that_is_not_text_is_refused():
    assert refusal(PollRequest, POLL | {b"colour": 1}) == words.bad_key("PollRequest")


@pytest.mark.parametrize("body", [b"\x81", b"\xa4\xff\xff\xff\xff", msgpack.packb(1) * 2])
def test_random_bytes_are_not_msgpack(body):
    assert has_message(refusal(PollRequest, body), words.not_msgpack, why="")


@pytest.mark.parametrize("value", [None, 5, "text", [], [POLL]])
def test_a_body_that_is_not_a_map_is_refused(value):
    assert has_message(refusal(PollRequest, value), words.unexpected, field="PollRequest", expected=words.A_MAP)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2_000, 100_000])
def test_a_body_that_nests_too_deep_is_refused(depth):
    assert refusal(PollRequest, b"\x91" * depth + b"\xc0")


def test_nesting_is_refused_even_in_unknown_fields():
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = {"deeper": nested}
    assert refusal(PollRequest, POLL | {"unknown": nested}) == words.too_deep(MAX_DEPTH)


def chain(levels: int, inner: object) -> object:
    for _ in range(levels):
        inner = [inner]
    return inner


leaves = st.none() | st.floats() | st.integers(-(2**63), 2**63) | st.text(max_size=40) | st.binary(max_size=40)
nested_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20)
    | st.builds(chain, st.integers(1, MAX_DEPTH + 1), inner),
    max_leaves=12,
)  # fmt: skip


@given(nested_values)
def test_nesting_is_refused_from_the_limit_on_and_never_below_it(value):
    body = msgpack.packb(POLL | {"unknown": value})
    if 1 + depth(value) > MAX_DEPTH:
        assert refusal(PollRequest, body) == words.too_deep(MAX_DEPTH)
    else:
        assert decode(PollRequest, body).agent_id == POLL["agent_id"]


def depth(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


def test_a_body_that_is_too_large_is_refused_unread():
    with pytest.raises(
        MessageTooLarge, match=pattern(words.too_large, most=MAX_MESSAGE_BYTES, size=MAX_MESSAGE_BYTES + 1)
    ):
        decode(PollRequest, b"\xc1" * (MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize(
    ("items", "limit"),
    [([1] * (MAX_ITEMS + 1), "max_array_len"), ({str(key): 1 for key in range(MAX_ITEMS + 1)}, "max_map_len")],
    ids=["list", "map"],
)
def test_more_items_than_any_message_has_are_refused_unread(items, limit):
    assert refusal(PollRequest, POLL | {"unknown": items}).endswith(f"{MAX_ITEMS + 1} exceeds {limit}({MAX_ITEMS})")


def test_a_refusal_is_always_short():
    assert len(refusal(PollRequest, POLL | {"revision": "9" * 100_000})) < 150


def test_the_evidence_of_a_failure_may_fill_a_report():
    """A report in the widest characters is still a message of allowed size."""
    line = WIDE * 1_024
    failure = messages.Failure(
        node_id=WIDE * 256,
        rank=0,
        local_rank=0,
        pid=1,
        exit_code=-9,
        cause=line,
        error=line,
        traceback=(WIDE * 512,) * 40,
        stderr_tail=(line,) * 32,
        hint=line,
        error_file=line,
    )
    report = ReportRequest(run_id=WIDE * 256, agent_id=WIDE * 256, round=1, failure=failure)
    assert decode(ReportRequest, encode(report)) == report
    too_much = replace(report, failure=replace(failure, stderr_tail=("x",) * 33))
    says = words.unexpected("ReportRequest.failure.stderr_tail", words.a_list(32), words.a_list_of(33))
    assert refusal(ReportRequest, encode(too_much)) == says


@pytest.mark.parametrize("text", ["a", "é", "a b", WIDE, "日本", "x" * 256])
def test_ids_may_be_of_any_writing(text):
    assert decode(PollRequest, msgpack.packb(POLL | {"run_id": text})).run_id == text


@pytest.mark.parametrize("text", ["{}", "{}a", "a{}", "a{}b"])
def test_ids_have_no_invisible_characters(text):
    for letter in "\0\t\n\x1b\x7f\x9b\xa0\xad\u200b\u202e\u2028":
        name = text.format(letter)
        with case(ascii(name)):
            says = words.unexpected("PollRequest.run_id", ID, repr(name))
            assert refusal(PollRequest, POLL | {"run_id": name}) == says


CONVERTS_IN_THREADS = """
import sys, threading
from msgspec import defstruct
from rdzv_protocol.codec import convert

sys.setswitchinterval(1e-6)
for number in range(200):
    inner = [defstruct(f"Inner{number}_{i}", [("a", "int"), ("b", "str", "")]) for i in range(3)]
    fields = [("x", inner[0]), ("y", tuple[inner[1], ...], ()), ("z", dict[str, inner[2]], {})]
    kind, gate = defstruct(f"Kind{number}", fields), threading.Barrier(4)

    def first():
        gate.wait()
        assert convert(kind, {"x": {"a": 1}, "z": {"k": {"a": 2}}}).z["k"].a == 2

    threads = [threading.Thread(target=first) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_agents_in_several_threads_of_a_program_may_get_their_first_message_at_once():
    done = subprocess.run((sys.executable, "-c", CONVERTS_IN_THREADS), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
