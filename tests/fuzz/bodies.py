"""Bodies: events, events with something wrong, and anything else."""

from __future__ import annotations

import collections.abc as c
import json
import typing as t

from .oracle import MAX_BODY

PRIVATE = "private-5f3759df"
"""In every event's data; must not be seen in logs or answers."""

TYPES = {
    "succeeds": "payment_intent.succeeded",
    "discards": "invoice.voided",
    "retries": "refund.created",
    "fails": "payout.failed",
    "unhandled": "customer.created",
}

_T = t.TypeVar("_T")


class Choices(t.Protocol):
    """A source of choices."""

    def pick(self, options: tuple[_T, ...]) -> _T: ...

    def number(self, low: int, high: int) -> int: ...

    def binary(self, size: int) -> bytes:
        """At most so many bytes."""

    def value(self) -> t.Any:
        """Any value of JSON."""


def any_body(choices: Choices) -> bytes:
    """The bytes that are signed."""
    return _KINDS[choices.pick(_BODIES)](choices)


def _event(choices: Choices) -> bytes:
    event = {
        "id": choices.pick(_IDS),
        "type": choices.pick(_TYPES),
        "created": choices.pick(_CREATED),
        "livemode": choices.pick((True, False, None, "yes")),
        "data": {"object": {"note": PRIVATE}},
    }

    for name in choices.pick(((),) * 9 + (("id",), ("type",), ("data",), ("created", "livemode"))):
        del event[name]

    if choices.number(0, 7) == 7:  # in another order
        name = choices.pick(("id", "type", "data"))
        event[name] = event.pop(name, None)

    if choices.number(0, 7) == 7:
        event[choices.pick(("id", "type", "data", "created", "api_version", "x"))] = choices.value()

    text = json.dumps(event, ensure_ascii=choices.pick((True, False)))
    return text.encode(
        choices.pick(("utf-8",) * 9 + ("utf-8-sig", "utf-16", "utf-32-be")), "replace"
    )


_IDS = (
    *(f"evt_{number}" for number in range(250)),
    "EVT_1",
    "e" * 50,
    "e" * 51,
    "a b",
    "é",
    "",
)
_TYPES = tuple(TYPES.values()) * 4 + (
    "invoice",
    "invoice.a.b",
    "x" * 100,
    "x" * 101,
    "\n",
    "é",
    "*",
)
_CREATED = (1_780_000_000, 1.5, -1, 10**30, 1e308, "now", None, True)


def _mutated_event(choices: Choices) -> bytes:
    return mutated(choices, _event(choices))


def mutated(choices: Choices, body: bytes) -> bytes:
    for _ in range(choices.number(1, 3)):
        position = choices.number(0, len(body))
        end = min(len(body), position + choices.number(0, 8))
        body = body[:position] + choices.pick((b"", choices.binary(8), *_TOKENS)) + body[end:]

    return body


_TOKENS = (
    b'"data":',
    b'"data" : {},',
    b',"data":{}',
    b'"x":{"data":',
    b"\\u0061",
    b'"',
    b"\\",
    b"{",
    b"},",
    b"\x00",
    b"\xff",
    b"\\ud800",
    b'"id":',
    b'"type":"x",',
    b"NaN",
    b"}",
    b"[[[[",
    b"1e999",
)


def _odd(choices: Choices) -> bytes:
    return choices.pick(_ODD)


_ODD = (
    b"",
    b" ",
    b"[]",
    b"null",
    b"5",
    b'"x"',
    b"{}",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe",
    b"{" * 1000,
    b"[" * 60_000,
    b'{"id":' * 10_000,
    b'{"id":"evt_1","type":"invoice.voided","data":' + b"[" * 240 + b"]" * 240 + b"}",
    b'{"id":"evt_1","type":"invoice.voided","data":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    b'{"id":"evt_1","type":"invoice.voided","data":' + b"9" * 5000 + b"}",
    b'{"id":"evt_1","type":"invoice.voided","created":1' + b"0" * 4000 + b"}",
    b'{"id":"evt_1","type":"invoice.voided","data":{"a":1,"a":2}}',
    b'{"id":"evt_1","id":"evt_2","type":"invoice.voided"}',
    b'{"id":"evt_1","type":"invoice.voided","data":-Infinity}',
    b'{"id":"\\ud800","type":"invoice.voided"}',
    b'{"id":"evt_1","type":"invoice.voided","data":"\\ud800"}',
    b'{"id":["evt_1"],"type":{"a":1}}',
)


def _large(choices: Choices) -> bytes:
    size = MAX_BODY + choices.pick((-1, 0, 1, 2, 65536, 10 * MAX_BODY))
    start = b'{"id":"evt_large","type":"payment_intent.succeeded","data":"'
    return start + b"x" * (size - len(start) - 2) + b'"}'


_KINDS: dict[str, c.Callable[[Choices], bytes]] = {
    "event": _event,
    "mutated": _mutated_event,
    "odd": _odd,
    "value": lambda choices: json.dumps(choices.value()).encode(),
    "binary": lambda choices: choices.binary(200),
    "large": _large,
}

_BODIES = ("event",) * 16 + ("mutated",) * 3 + ("odd",) * 3 + ("value", "binary", "large")
