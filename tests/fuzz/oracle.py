"""What has to become of a delivery, by the official SDK and the README, not by the package."""

from __future__ import annotations

import json
import re
import sys
import typing as t

import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]
from sangho import SanghoError

from .delivery import Delivery

NOW = 1_780_000_000
SECRETS = ("whsec_fuzz_new_e0b1", "whsec_fuzz_old_77aa")
TOLERANCE = 300
MAX_BODY = 64 * 1024

MAX_READ = 40 * 1024 * 1024
"""Bytes of one request. What is too large is read on for a while, for the client to see the answer,
but not to the end.
"""

DEEP = 300
"""Open brackets. How many more a parser takes depends on the stack that it is called on."""

_PRINTABLE = "[!-~]"


class Refused(t.NamedTuple):
    """Refused before there is an event."""

    status: int
    reason: str


class Accepted(t.NamedTuple):
    """A verified event."""

    event_id: str
    event_type: str
    payload: dict[str, t.Any]
    body: bytes


Verdict = Refused | Accepted

MALFORMED = Refused(400, "malformed")
MISMATCH = Refused(401, "mismatch")
INVALID = Refused(400, "invalid_payload")
TOO_LARGE = Refused(413, "too_large")
UNAVAILABLE = Refused(500, "body_unavailable")


def verdicts(delivery: Delivery) -> list[Verdict]:
    """The right verdict on a POST to the endpoint; several where the HTTP framing of the request is
    so broken that more than one reading is right.
    """
    readings: list[bytes | Refused] = _readings(delivery)
    found: list[Verdict] = []

    for reading in readings:
        found += [reading] if isinstance(reading, Refused) else _judge(delivery, reading)

    return found


def _readings(delivery: Delivery) -> list[bytes | Refused]:
    """What the server has received of the body, by PEP 3333."""
    coding = delivery.header("Transfer-Encoding") or ""
    chunked = coding.strip().lower() == "chunked"
    promised = None if chunked else _length(delivery.length)
    body = delivery.body + b"x" * min(delivery.more, MAX_BODY)
    body = body if delivery.terminated else body[: promised or 0]

    if "chunked" in coding.lower() and not chunked:
        return [body, delivery.body, b"", TOO_LARGE, UNAVAILABLE]

    if promised is not None and promised > sys.maxsize:
        return [TOO_LARGE]

    is_short = promised is not None and promised > len(body)
    # A server that does not vouch for the end of the body does not read past its length.
    meets_end = delivery.terminated or is_short

    if len(body) > MAX_BODY:
        # Whoever throws the rest away may find that it ends too early.
        return [TOO_LARGE, UNAVAILABLE] if delivery.breaks or is_short else [TOO_LARGE]

    if is_short or (meets_end and delivery.breaks) or (chunked and not body):
        return [UNAVAILABLE]

    return [body]


def _length(value: str | None) -> int | None:
    """Werkzeug takes what is no number for 0, so that a body without a length is not waited for."""
    if value is None:
        return None

    value = value.strip()
    return int(value) if re.fullmatch("[0-9]{1,4000}", value) else 0


def _judge(delivery: Delivery, body: bytes) -> list[Verdict]:
    header = delivery.header("Sangho-Signature")

    try:
        payload = _construct(body, header)
    except SanghoError as error:
        return [Refused(error.status_code, getattr(error, "reason", error.code))]
    except RecursionError:
        return [INVALID]
    except (ValueError, OverflowError):
        return [MALFORMED]

    verdict = _event(payload, body, delivery.header("Sangho-Event-ID"))

    if verdict is not INVALID and not _is_strict(body):
        verdict = INVALID

    if body.count(b"[") + body.count(b"{") > DEEP:
        return [verdict, INVALID]

    return [verdict]


def _construct(body: bytes, header: str | None) -> t.Any:
    """The SDK's verdict. It fails on a ``v1`` outside ASCII, which matches nothing: without it."""
    try:
        return sdk.Webhooks.construct_event(body, header, list(SECRETS), TOLERANCE)
    except TypeError:
        parts = [part.partition("=") for part in (header or "").split(",")]
        harmless = ",".join(
            f"{key}=x" if key.strip() == "v1" and not value.isascii() else f"{key}{equals}{value}"
            for key, equals, value in parts
        )
        return sdk.Webhooks.construct_event(body, harmless, list(SECRETS), TOLERANCE)


def _event(payload: t.Any, body: bytes, header_id: str | None) -> Verdict:
    if not isinstance(payload, dict):
        return INVALID

    event_id = payload.get("id", header_id)
    event_type = payload.get("type")

    if "id" in payload and header_id and header_id != event_id:
        return INVALID

    if not _fits(event_id, 50) or not _fits(event_type, 100):
        return INVALID

    return Accepted(t.cast(str, event_id), t.cast(str, event_type), payload, body)


def _fits(value: object, length: int) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(f"{_PRINTABLE}{{1,{length}}}", value))


def _is_strict(body: bytes) -> bool:
    """No member of the event twice and no NaN anywhere, which the SDK lets through."""
    constants: list[str] = []
    members = json.loads(body, object_pairs_hook=tuple, parse_constant=constants.append)
    names = [name for name, _ in members]
    return not constants and len(set(names)) == len(names)
