"""The event of a delivery. Pure: bytes in, value out."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime as dt
import json
import re
import typing as t

from .errors import PayloadError

MAX_ID_LENGTH = 50
MAX_TYPE_LENGTH = 100

# The guide's columns are VARCHAR(50) and VARCHAR(100); printable ASCII fits them in any database
# encoding, and compares the same in all.
_is_id = re.compile(f"[!-~]{{1,{MAX_ID_LENGTH}}}").fullmatch
_is_type = re.compile(f"[!-~]{{1,{MAX_TYPE_LENGTH}}}").fullmatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of Sangho. Needs no request: workers and scripts build it the same way.

    :raises PayloadError: if ``id`` or ``type`` cannot be an event's.
    """

    id: str
    """Identifies the event in every delivery of it: 1 to 50 printable ASCII characters."""

    type: str
    """Such as ``payment_intent.succeeded``: 1 to 100 printable ASCII characters."""

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
        if not _fits(_is_id, self.id):
            raise PayloadError(
                "The event's id must be 1 to 50 printable ASCII characters without spaces."
            )

        if not _fits(_is_type, self.type):
            raise PayloadError(
                "The event's type must be 1 to 100 printable ASCII characters without spaces."
            )

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
        payload = _parse(body)

        if "id" not in payload:
            event_id = header_id
        elif header_id and header_id != payload["id"]:
            raise PayloadError("The Sangho-Event-ID header differs from the id in the body.")
        else:
            event_id = payload["id"]

        data = payload.get("data")
        livemode = payload.get("livemode")
        api_version = payload.get("api_version")
        return cls(
            id=event_id,  # type: ignore[arg-type]  # __post_init__ refuses what is not a string
            type=payload.get("type"),  # type: ignore[arg-type]
            created=_timestamp(payload.get("created")),
            livemode=livemode if isinstance(livemode, bool) else None,
            api_version=api_version if isinstance(api_version, str) else None,
            data=data if isinstance(data, dict) else {},
            payload=payload,
            body=body,
        )


def _fits(is_match: c.Callable[[str], object], value: object) -> bool:
    return isinstance(value, str) and is_match(value) is not None


def _parse(body: bytes) -> dict[str, t.Any]:
    try:
        encoding = "utf-8" if body.startswith(b'{"') else json.detect_encoding(body)
        text = body.decode(encoding, "surrogatepass")
        payload = _as_usual(text) or _members(text)
    except (ValueError, RecursionError):
        payload = _INVALID

    # Raised out here: the decoder's error, which holds the whole body, is no context of ours.
    if payload is _INVALID:
        raise PayloadError("The body is not valid JSON.")

    if not isinstance(payload, dict):
        raise PayloadError("The body is not a JSON object.")

    return payload


def _as_usual(text: str) -> dict[str, t.Any] | None:
    """The members of an event that ends with ``data``, as Sangho writes it, or None.

    Only the event's own members are checked for duplicates: a hook that is called for each object
    below would double the time of parsing.
    """
    before, name, after = text.partition('"data":')
    before += name + "0}"

    try:
        members, end = _FLAT.raw_decode(before)

        # The name is that of a member of the event if the event, closed behind it, is JSON.
        if end != len(before):
            return None

        members["data"], end = _JSON.raw_decode(after, after.startswith(" "))
    except ValueError:
        return None

    return t.cast(dict[str, t.Any], members) if after[end:] == "}" else None


def _members(text: str) -> t.Any:
    payload = _JSON.decode(text)

    if isinstance(payload, dict) and len(payload) != len(_PAIRS.decode(text)):
        raise PayloadError("The body names a member of the event twice.")

    return payload


def _unique(pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    members = dict(pairs)

    if len(members) != len(pairs):
        raise ValueError("a member is there twice")

    return members


def _refuse_constant(name: str) -> t.NoReturn:
    raise ValueError(f"{name} is not JSON")


_INVALID: t.Final = object()
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
_FLAT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
_PAIRS = json.JSONDecoder(object_pairs_hook=tuple)


def _timestamp(value: object) -> dt.datetime | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None

    try:
        return dt.datetime.fromtimestamp(value, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None
