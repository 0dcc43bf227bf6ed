"""From verified bytes to an event, or to a refusal."""

from __future__ import annotations

import collections.abc as c
import copy
import dataclasses
import datetime as dt
import json
import pickle
import typing as t

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_sangho_webhooks import Event, PayloadError

from .support import event_body, TYPE


def refusal(body: bytes, header_id: str | None = None) -> str:
    """The message of the refusal, which must be an ``invalid_payload`` and show nothing inside."""
    with pytest.raises(PayloadError) as caught:
        Event.from_body(body, header_id)

    error = caught.value
    assert (error.reason, error.status) == ("invalid_payload", 400)
    assert error.__suppress_context__ or error.__context__ is None
    assert "secret" not in str(error)
    return str(error)


def event_with(member: str) -> bytes:
    """The bytes of an event with one more member."""
    return b'{"id": "evt_1", "type": "kyc.updated", %s}' % member.encode()


def test_event_of_a_body() -> None:
    body = event_body("evt_1", TYPE, data={"object": {"id": "pi_1", "name": "Café"}})
    event = Event.from_body(body)

    assert event.id == "evt_1"
    assert event.type == TYPE
    assert event.created == dt.datetime(2026, 5, 28, 20, 28, 20, tzinfo=dt.UTC)
    assert event.livemode is True
    assert event.api_version == "2026-01-01"
    assert event.data == {"object": {"id": "pi_1", "name": "Café"}}
    assert event.object == {"id": "pi_1", "name": "Café"}
    assert event.payload == json.loads(body)
    assert event.body is body


def test_event_needs_only_id_and_type() -> None:
    event = Event.from_body(b'{"id": "evt_1", "type": "kyc.updated"}')

    assert (event.id, event.type) == ("evt_1", "kyc.updated")
    assert (event.created, event.livemode, event.api_version) == (None, None, None)
    assert event.data == {}


def test_event_without_object_says_so() -> None:
    with pytest.raises(KeyError, match="object"):
        _ = Event.from_body(b'{"id": "evt_1", "type": "kyc.updated"}').object


def test_event_can_be_built_by_hand() -> None:
    event = Event(id="evt_1", type=TYPE, data={"object": 5})

    assert event.object == 5
    assert event.body == b""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n", id="blank"),
        pytest.param(b"secret", id="text"),
        pytest.param(b"\x00", id="one zero byte"),
        pytest.param(b"\xff\xfe", id="only a mark of UTF-16"),
        pytest.param(b"\xef\xbb\xbf", id="only a mark of UTF-8"),
        pytest.param(event_body() + b"{}", id="something after the object"),
        pytest.param(event_body()[:-1], id="cut short"),
        pytest.param(event_with('"name": "secret\xff').replace(b"\xc3", b""), id="invalid UTF-8"),
        pytest.param(event_with('"name": "secret\n"'), id="bare line break"),
        pytest.param(event_with('"data": NaN'), id="NaN"),
        pytest.param(event_with('"data": [Infinity]'), id="Infinity"),
        pytest.param(event_with('"data": {"object": -Infinity}'), id="-Infinity"),
        pytest.param(event_with('"data": ' + "9" * 5000), id="5,000-digit number"),
        pytest.param(b"[" * 100_000, id="100,000 open lists"),
        pytest.param(b'{"id":' * 100_000, id="100,000 open objects"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="100,000 lists"),
        pytest.param(
            event_with('"data": ' + '{"object":' * 100_000 + "{}" + "}" * 100_000),
            id="100,000 objects in an event",
        ),
        pytest.param(event_with('"a": 1}, "data": {}'), id="object closed before data"),
        pytest.param(event_with('"a": {}, "data": {}}'), id="object closed twice"),
        pytest.param(
            event_with('"a": "}, "data": {}'),
            id="name of data inside of a string",
        ),
    ],
)
def test_body_that_is_not_json(body: bytes) -> None:
    assert refusal(body) == "The body is not valid JSON."


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(event_with('"type": "kyc.updated"'), id="type twice"),
        pytest.param(event_with('"id": "evt_2"'), id="id twice"),
        pytest.param(event_with(r'"\u0069d": "evt_2"'), id="id twice, once escaped"),
        pytest.param(event_with('"data": {}, "id": "evt_2"'), id="id twice, behind data"),
        pytest.param(event_with('"note": "a, b", "id": "evt_2", "data": {}'), id="id, and a comma"),
        pytest.param(event_with('"data": {}, "data": {}'), id="data twice"),
        pytest.param(event_with('"data" : {}, "data": {}'), id="data twice, once with a space"),
        pytest.param(event_with(r'"dat\u0061": {}, "data": {}'), id="data twice, once escaped"),
        pytest.param(
            event_with('"id": "evt_2", "data": {}').decode().encode("utf-16"), id="UTF-16"
        ),
    ],
)
def test_body_that_names_a_member_twice(body: bytes) -> None:
    assert refusal(body) == "The body names a member of the event twice."


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(r'"x\"data":{"object":5}', id="name that ends like data"),
        pytest.param(r'"dat\u0061":1,"x\"data":2', id="the same, beside data"),
        pytest.param(r'"x\\":"data","y":2', id="name that ends with a backslash"),
        pytest.param('"note":"a, b","data":{}', id="comma in a string"),
        pytest.param('"list":[1,{"id":2}],"data":{"id":3}', id="commas in a list"),
        pytest.param('"a":{"data":1},"b":{"data":2}', id="data below"),
        pytest.param('"data":{},"x":[]', id="data is not the last"),
    ],
)
def test_members_are_kept_as_they_are(member: str) -> None:
    body = event_with(member)
    assert Event.from_body(body).payload == json.loads(body)


@pytest.mark.parametrize("data", ['{"a": 1, "a": 2}', '{"b": [{"a": 1, "a": 2}]}'])
@pytest.mark.parametrize("more", ["", ', "livemode": true'])
def test_below_the_event_the_last_of_two_members_counts(data: str, more: str) -> None:
    event = Event.from_body(event_with(f'"data": {data}{more}'))
    assert event.data == json.loads(data)


_BODY = '{"id": "a", "type": "b", "created": 1, "data": {"object": {"id": "c"}}}'
_pieces = st.one_of(
    st.sampled_from(["{", "}", ",", ":", '"', "\\", " ", "\n", "NaN", "[]", "},", '"x": {']),
    st.sampled_from(
        [
            *('"data":', '"data" :', '"data":{}', ', "data": {}', '"id": "d",', ', "x": {}'),
            *(r'"x\"data":', r'"dat\u0061":1,', '"y":[1,2],'),
        ]
    ),
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(insertions=st.lists(st.tuples(st.integers(0, len(_BODY)), _pieces), max_size=3))
def test_verdict_and_members_are_those_of_the_json_module(
    insertions: list[tuple[int, str]],
) -> None:
    text = _BODY

    for position, piece in insertions:
        text = text[:position] + piece + text[position:]

    try:
        pairs = json.loads(text, object_pairs_hook=tuple, parse_constant=float.fromhex)
        expected = None if len(pairs) != len(dict(pairs)) else json.loads(text)
    except ValueError:
        expected = None

    try:
        assert Event.from_body(text.encode()).payload == expected
    except PayloadError as refusal:
        unusable = str(refusal).startswith(("The event's id", "The event's type"))
        assert unusable or expected is None


def test_error_does_not_lead_to_the_body() -> None:
    with pytest.raises(PayloadError) as caught:
        Event.from_body(b'{"secret": ')

    assert caught.value.__context__ is None


@pytest.mark.parametrize("body", [b"[]", b"null", b'"secret"', b"5", b"1e3", b"true", b"[{}]"])
def test_body_that_is_no_object(body: bytes) -> None:
    assert refusal(body) == "The body is not a JSON object."


BAD_NAMES = [
    pytest.param(value, id=name)
    for name, value in {
        "null": None,
        "number": 5,
        "boolean": True,
        "list": ["evt_1"],
        "object": {"id": "evt_1"},
        "empty": "",
        "blank": " ",
        "space before": " evt_1",
        "space after": "evt_1 ",
        "space inside": "evt 1",
        "trailing line break": "evt_1\n",
        "line break": "evt\r\n1",
        "tab": "evt\t1",
        "zero byte": "evt_1\x00",
        "delete": "evt_1\x7f",
        "accent": "evt_é",
        "emoji": "evt_😀",
        "digits of another script": "evt_\uff11",
        "no-break space": "evt_1\xa0",
        "lone surrogate": "evt_\ud800",
    }.items()
]


@pytest.mark.parametrize("value", [*BAD_NAMES, pytest.param("e" * 51, id="51 characters")])
def test_unusable_id(value: object) -> None:
    body = json.dumps({"id": value, "type": TYPE}).encode()

    assert refusal(body).startswith("The event's id must be")


@pytest.mark.parametrize("value", [*BAD_NAMES, pytest.param("e" * 101, id="101 characters")])
def test_unusable_type(value: object) -> None:
    body = json.dumps({"id": "evt_1", "type": value}).encode()

    assert refusal(body).startswith("The event's type must be")


def test_missing_id() -> None:
    assert refusal(b'{"type": "kyc.updated"}').startswith("The event's id must be")


def test_missing_type() -> None:
    assert refusal(b'{"id": "evt_1"}', "evt_1").startswith("The event's type must be")


@pytest.mark.parametrize("event_id", ["e", "e" * 50, "!~", "evt_0123456789abcdef", '"', "\\", "'"])
def test_usable_id(event_id: str) -> None:
    assert Event.from_body(event_body(event_id)).id == event_id


@pytest.mark.parametrize("event_type", ["t", "t" * 100, "!~", "checkout.session.completed"])
def test_usable_type(event_type: str) -> None:
    assert Event.from_body(event_body(event_type=event_type)).type == event_type


@pytest.mark.parametrize(("event_id", "event_type"), [("evt 1", TYPE), ("evt_1", "kyc updated")])
def test_event_built_by_hand_is_held_to_the_same_rules(event_id: str, event_type: str) -> None:
    with pytest.raises(PayloadError):
        Event(id=event_id, type=event_type)


def test_lone_surrogate_outside_id_and_type_is_kept() -> None:
    escaped = Event.from_body(event_with(r'"data": "\ud800"'))
    encoded = Event.from_body(event_with('"data": "?"').replace(b"?", b"\xed\xa0\x80"))

    assert escaped.payload["data"] == encoded.payload["data"] == "\ud800"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_encodings_that_the_official_sdk_reads(encoding: str) -> None:
    body = event_body(data={"object": {"name": "Café"}}).decode().encode(encoding)

    assert Event.from_body(body).object == {"name": "Café"}


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"  \t"])
def test_white_space_around_the_object(ending: bytes) -> None:
    event = Event.from_body(ending + event_body() + ending)

    assert event.id == "evt_1"
    assert event.body.endswith(ending)


# The header is not signed: it may repeat the body's id, or stand in for it, but never replace it.


@pytest.mark.parametrize("header_id", [None, "", "evt_1"])
def test_id_of_the_body_counts(header_id: str | None) -> None:
    assert Event.from_body(event_body("evt_1"), header_id).id == "evt_1"


def test_header_id_stands_in_for_a_missing_one() -> None:
    assert Event.from_body(b'{"type": "kyc.updated"}', "evt_1").id == "evt_1"


@pytest.mark.parametrize("header_id", ["evt_2", "EVT_1", "evt_1 ", "evt_1\n", "evt_\xe9"])
def test_header_id_that_differs_is_refused(header_id: str) -> None:
    message = refusal(event_body("evt_1"), header_id)

    assert message == "The Sangho-Event-ID header differs from the id in the body."


@pytest.mark.parametrize("value", ["null", "5", '""', "[]"])
def test_header_id_does_not_replace_an_unusable_one(value: str) -> None:
    refusal(b'{"type": "kyc.updated", "id": %s}' % value.encode(), "evt_1")


@pytest.mark.parametrize("header_id", ["", " ", "e" * 51, "evt 1", "evt_\xe9", "evt_1\n"])
def test_unusable_header_id(header_id: str) -> None:
    message = refusal(b'{"type": "kyc.updated"}', header_id)

    assert message.startswith("The event's id must be")


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ("0", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ("-1", dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ("1.5", dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)),
        ("1780000100", dt.datetime(2026, 5, 28, 20, 28, 20, tzinfo=dt.UTC)),
        ("1780000100000", None),
        ("1e400", None),
        ("-1e400", None),
        ("9" * 4000, None),
        ("null", None),
        ("true", None),
        ('"1780000100"', None),
        ("[1780000100]", None),
    ],
)
def test_created(created: str, expected: dt.datetime | None) -> None:
    event = Event.from_body(event_with(f'"created": {created}'))

    assert event.created == expected
    assert event.created is None or event.created.tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("member", "name", "expected"),
    [
        ('"livemode": false', "livemode", False),
        ('"livemode": 1', "livemode", None),
        ('"livemode": "true"', "livemode", None),
        ('"api_version": 5', "api_version", None),
        ('"api_version": null', "api_version", None),
        ('"data": null', "data", {}),
        ('"data": [1]', "data", {}),
        ('"data": "x"', "data", {}),
    ],
)
def test_optional_member_of_another_kind(member: str, name: str, expected: object) -> None:
    assert getattr(Event.from_body(event_with(member)), name) == expected


def test_events_are_told_apart_in_order_of_creation() -> None:
    older, newer = (Event.from_body(event_body(created=n)) for n in (1780000100, 1780000101))

    assert older.created is not None
    assert newer.created is not None
    assert older.created < newer.created


NAMES = [field.name for field in dataclasses.fields(Event)]


@pytest.mark.parametrize("name", NAMES)
def test_no_field_follows_the_payload(name: str) -> None:
    event, untouched = (Event.from_body(event_body()) for _ in range(2))
    event.payload.clear()

    assert getattr(event, name) == ({} if name == "payload" else getattr(untouched, name))
    assert getattr(event, name) is getattr(event, name)


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        dataclasses.replace,
        lambda event: Event(**{name: getattr(event, name) for name in NAMES}),
    ],
    ids=["copy", "replace", "constructor"],
)
def test_copy_has_every_field(copied: c.Callable[[Event], Event]) -> None:
    event = Event.from_body(event_body())
    other = copied(Event.from_body(event_body()))

    assert other == event
    assert all(getattr(other, name) == getattr(event, name) for name in NAMES)


def test_subclass_that_narrows_fields() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Paid(Event):
        created: dt.datetime | None
        data: dict[str, t.Any]

    assert Paid(id="evt_1", type=TYPE, data={}).created is None  # type: ignore[call-arg]
    assert Paid.from_body(event_body()).data == Event.from_body(event_body()).data

    with pytest.raises(TypeError, match="'data'"):
        Paid(id="evt_1", type=TYPE)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["id", "type", "created", "data", "body", "note"])
def test_event_is_frozen(name: str) -> None:
    event = Event.from_body(event_body())

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, name, None)

    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(event, name)


def test_parsed_event_is_like_one_built_by_hand() -> None:
    parsed = Event.from_body(event_body())
    built = Event(
        **{field.name: getattr(parsed, field.name) for field in dataclasses.fields(Event)}
    )

    assert (parsed, hash(parsed), repr(parsed)) == (built, hash(built), repr(built))
    assert dataclasses.asdict(parsed) == dataclasses.asdict(built)


def test_event_with_another_value() -> None:
    event = Event.from_body(event_body())
    other = dataclasses.replace(event, id="evt_2")

    assert dataclasses.asdict(other) == {**dataclasses.asdict(event), "id": "evt_2"}
    assert dataclasses.replace(event, created=None).created is None

    with pytest.raises(PayloadError):
        dataclasses.replace(event, id="evt 2")


def test_repr_shows_no_content() -> None:
    event = Event.from_body(event_body(data={"object": {"card": "4242"}}, note="4242"))

    assert "evt_1" in repr(event)
    assert "4242" not in repr(event)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(protocol: int) -> None:
    event = Event.from_body(event_body())
    other = pickle.loads(pickle.dumps(event, protocol))

    assert dataclasses.asdict(other) == dataclasses.asdict(event)


def test_event_is_hashable_and_equal_to_its_copy() -> None:
    event = Event.from_body(event_body())

    assert {event: 1}[copy.deepcopy(event)] == 1
    assert event != Event.from_body(event_body("evt_2"))


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(body=st.binary(), header_id=st.none() | st.text())
def test_any_bytes_are_an_event_or_a_payload_error(body: bytes, header_id: str | None) -> None:
    with pytest.raises(PayloadError):
        Event.from_body(body, header_id)


_floats = st.floats(allow_nan=False, allow_infinity=False)
_json: st.SearchStrategy[t.Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(payload=st.dictionaries(st.text(), _json, max_size=4), ascii_only=st.booleans())
def test_any_json_object_with_id_and_type_is_kept_as_it_is(
    payload: dict[str, t.Any], ascii_only: bool
) -> None:
    payload = {**payload, "id": "evt_1", "type": TYPE}
    body = json.dumps(payload, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    event = Event.from_body(body)

    assert event.payload == payload
    assert event.body == body


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedEvent(Event):
    created: dt.datetime | None = None
    seen_by: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen_by.append("constructor")


def test_class_of_the_users_own_has_its_own_fields() -> None:
    event = TracedEvent.from_body(event_body())
    assert isinstance(event, TracedEvent)
    assert event.seen_by == ["constructor"]
    assert event.created == Event.from_body(event_body()).created
