"""The event of a delivery. Pure: bytes in, value out."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime as dt
import json
import re
import typing as t

from .errors import PayloadError
from .event_types import KNOWN_TYPES

MAX_ID_LENGTH = 50
MAX_TYPE_LENGTH = 100

# The guide's columns are VARCHAR(50) and VARCHAR(100); printable ASCII fits them in any database
# encoding, and compares the same in all.
_KNOWN = frozenset(KNOWN_TYPES)
_is_id = re.compile(f"[!-~]{{1,{MAX_ID_LENGTH}}}").fullmatch
_are_both = re.compile(f"[!-~]{{1,{MAX_ID_LENGTH}}} [!-~]{{1,{MAX_TYPE_LENGTH}}}").fullmatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One event of Sangho. Needs no request: workers and scripts build it the same way.

    :raises PayloadError: if ``id`` or ``type`` cannot be an event's.
    """

    id: str
    """Identifies the event in every delivery of it: 1 to 50 printable ASCII characters."""

    type: str
    """Such as ``payment_intent.succeeded``: 1 to 100 printable ASCII characters."""

    # A parsed event makes these, all but the last, when they are asked for: _MAKERS below.

    created: dt.datetime | None = None
    """When the event happened, in UTC. Deliveries may arrive in another order."""

    livemode: bool | None = None
    """As sent; None if it is no boolean."""

    api_version: str | None = None
    """As sent; None if it is no string."""

    data: dict[str, t.Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """As sent; empty if it is no object."""

    payload: dict[str, t.Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """The whole body, parsed."""

    body: bytes = dataclasses.field(default=b"", repr=False, compare=False)
    """The bytes that were signed."""

    def __post_init__(self) -> None:
        if not _is_usable(self.id, self.type):
            raise _unusable(self.id)

    @property
    def object(self) -> t.Any:
        """``data["object"]``: what the event is about, such as the payment intent.

        :raises KeyError: if the event has none.
        """
        return self.data["object"]

    @classmethod
    def from_body(cls, body: bytes, header_id: str | None = None) -> Event:
        """Parse a verified body.

        :param body: the body exactly as it was received.
        :param header_id: the value of ``Sangho-Event-ID``. It is not covered by the signature, so
            it only serves when the body has no id, and must not contradict the body.
        :raises PayloadError: if the body is not a JSON object, names a member of it twice, has no
            usable ``id`` or ``type``, or has another id than the header.
        """
        if cls is not Event:  # which may have fields and a constructor of its own
            event = Event.from_body(body, header_id)
            names = (field.name for field in dataclasses.fields(Event))
            return cls(**{name: getattr(event, name) for name in names})

        members = _as_usual(body) or _parse(body)
        event_id = members.get("id", header_id)

        if header_id and header_id != event_id:
            raise PayloadError("The Sangho-Event-ID header differs from the id in the body.")

        event_type = members.get("type")

        if not _is_usable(event_id, event_type):
            raise _unusable(event_id)

        event = object.__new__(cls)
        # The constructor of a frozen dataclass takes longer for this than the signature does.
        made = event.__dict__
        made["id"] = event_id
        made["type"] = event_type
        made["body"] = body
        made["_members"] = members
        return event


class _Made:
    """A field of a parsed event that is made when it is first asked for: handlers need few.

    :param make: makes it from the event's members.
    :param default: of the field, which the class has in a dataclass.
    """

    def __init__(
        self, name: str, make: c.Callable[[dict[str, t.Any]], object], default: object
    ) -> None:
        self.name = name
        self.make = make
        self.default = default

    def __get__(self, event: Event | None, owner: type[Event]) -> object:
        if event is not None:
            # The first one counts, if several threads ask at the same time.
            return event.__dict__.setdefault(self.name, self.make(event.__dict__["_members"]))

        if self.default is dataclasses.MISSING:
            raise AttributeError(self.name)

        return self.default


def _is_usable(event_id: t.Any, event_type: t.Any) -> bool:
    try:
        # Most are letters, digits and underscores. The pattern takes twice as long to say so.
        if event_type in _KNOWN and event_id.isidentifier() and event_id.isascii():
            return len(event_id) <= MAX_ID_LENGTH

        return _are_both(event_id + " " + event_type) is not None
    except (TypeError, AttributeError):  # one of them is no string
        return False


def _unusable(event_id: object) -> PayloadError:
    name, most = "id", MAX_ID_LENGTH

    if isinstance(event_id, str) and _is_id(event_id):
        name, most = "type", MAX_TYPE_LENGTH

    return PayloadError(
        f"The event's {name} must be 1 to {most} printable ASCII characters without spaces."
    )


def _as_usual(body: bytes) -> dict[str, t.Any] | None:
    """The members of an event in UTF-8 that ends with ``data``, as Sangho writes it, or None.

    Only the event's own members are checked for duplicates: a hook that is called for each object
    below would double the time of parsing.
    """
    try:
        before, _, value = body.decode().partition('"data":')
        head = before + '"data":0}'
        members: dict[str, t.Any]
        members, end = _scan(head, 0)

        # The name is that of a member of the event if the event, closed behind it, is JSON, and it
        # is not the end of a longer one such as "x\"data". Between n members are n - 1 commas or
        # more: if there are as many as the dictionary now has keys, no member replaced another.
        if end != len(head) or members.popitem()[0] != "data" or head.count(",") != len(members):
            return None

        members["data"], end = _scan(value, value[:1] == " ")
    except (ValueError, RecursionError, StopIteration):  # the last: no value begins there
        return None

    return members if value[end:] == "}" else None


def _parse(body: bytes) -> dict[str, t.Any]:
    try:
        payload = _members(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        payload = _INVALID

    # Raised out here: the decoder's error, which holds the whole body, is no context of ours.
    if payload is _INVALID:
        raise PayloadError("The body is not valid JSON.")

    if not isinstance(payload, dict):
        raise PayloadError("The body is not a JSON object.")

    return payload


def _members(text: str) -> t.Any:
    payload = _JSON.decode(text)

    if isinstance(payload, dict) and len(payload) != len(_PAIRS.decode(text)):
        raise PayloadError("The body names a member of the event twice.")

    return payload


def _refuse_constant(name: str) -> t.NoReturn:
    raise ValueError(f"{name} is not JSON")


_INVALID: t.Final = object()
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
# The scanner alone: raw_decode() wraps it in Python, and decode() in regular expressions as well.
_scan: c.Callable[[str, int], tuple[t.Any, int]] = _JSON.scan_once  # type: ignore[attr-defined]
_PAIRS = json.JSONDecoder(object_pairs_hook=tuple)


def _timestamp(value: object) -> dt.datetime | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None

    try:
        return dt.datetime.fromtimestamp(value, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _created(members: dict[str, t.Any]) -> dt.datetime | None:
    return _timestamp(members.get("created"))


def _livemode(members: dict[str, t.Any]) -> bool | None:
    value = members.get("livemode")
    return value if isinstance(value, bool) else None


def _api_version(members: dict[str, t.Any]) -> str | None:
    value = members.get("api_version")
    return value if isinstance(value, str) else None


def _data(members: dict[str, t.Any]) -> dict[str, t.Any]:
    value = members.get("data")
    return value if isinstance(value, dict) else {}


_MAKERS: dict[str, c.Callable[[dict[str, t.Any]], object]] = {
    "created": _created,
    "livemode": _livemode,
    "api_version": _api_version,
    "data": _data,
    "payload": dict,
}

for _name, _make in _MAKERS.items():
    setattr(Event, _name, _Made(_name, _make, getattr(Event, _name, dataclasses.MISSING)))
