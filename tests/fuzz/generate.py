"""Deliveries from a source of choices: hypothesis, or the bytes of a coverage-guided fuzzer.

Most are one step away from a good one: who has to guess a signature sees nothing behind it.
"""

from __future__ import annotations

import json

from flask_sangho_webhooks.testing import sign

from .bodies import any_body, Choices, mutated
from .delivery import Delivery
from .oracle import MAX_BODY, NOW, SECRETS


def delivery(choices: Choices) -> Delivery:
    """Any delivery."""
    body = any_body(choices)
    headers = _signature(choices, body)
    headers += _event_id(choices, body)
    headers += _others(choices)

    if choices.number(0, 15) == 15:
        body = mutated(choices, body)

    method, path = choices.pick(_ROUTES)
    more = choices.pick(_MORE) if len(body) > MAX_BODY - 2 else 0
    length: str | None = str(len(body) + more)
    length = choices.pick((length,) * 80 + (None, "0", str(len(body) + 1)) + _LENGTHS)
    chunked = choices.pick(_OFTEN_NOT)

    if chunked:
        headers.append(("Transfer-Encoding", choices.pick(_CODINGS)))
        length = choices.pick((None, None, length))

    return Delivery(
        body=body,
        headers=tuple(headers),
        method=method,
        path=path,
        length=length,
        terminated=choices.pick((True, True, True, False)),
        more=more,
        piece=choices.pick((65536, 65536, 1000, 7)) if len(body) < 4096 else 65536,
        breaks=choices.number(0, 30) == 30,
    )


_OFTEN_NOT = (False,) * 7 + (True,)
_ROUTES = (
    (("POST", "/webhook"),) * 60
    + (("POST", "/webhook/"),) * 3
    + (("GET", "/webhook"), ("HEAD", "/webhook"), ("OPTIONS", "/webhook"), ("PUT", "/webhook"))
    + (("post", "/webhook"), ("POST", "/"), ("POST", "/webhook/\xff"), ("POST", "//webhook"))
)
_MORE = (0,) * 5 + (256 * 1024 * 1024,)
_LENGTHS = ("", "-1", "+5", "1e3", "\xb2", " 12 ", "9" * 30, str(2**63 - 1), "9" * 5000, "5,5")
_CODINGS = ("chunked",) * 6 + ("Chunked", "gzip, chunked", "xchunked", "identity", "", "\xe9")


# --------------------------------------------------------------------- headers


def _signature(choices: Choices, body: bytes) -> list[tuple[str, str]]:
    kind = choices.pick(_SIGNATURES)
    timestamp = NOW + choices.pick(_AGES)
    good = sign(body, choices.pick(_SIGNERS), timestamp)

    if kind == "none":
        return []

    if kind == "edited":
        good = mutated(choices, good.encode("latin-1")).decode("latin-1")
    elif kind == "any":
        good = choices.binary(60).decode("latin-1")
    elif kind == "formatted":
        number, _, digest = good[2:].partition(",v1=")
        good = choices.pick(_FORMATS).format(t=number, v1=digest, V1=digest.upper())
    elif kind == "twice":
        other = choices.pick(("", "x", sign(b"", SECRETS[0], NOW), "t=1", "v1=\xe9", good))
        return [
            ("Sangho-Signature", value) for value in choices.pick(((good, other), (other, good)))
        ]

    return [(choices.pick(("Sangho-Signature", "SANGHO-signature")), good)]


_SIGNATURES = ("good",) * 20 + ("edited", "formatted") * 3 + ("none", "any", "twice")
_SIGNERS = (SECRETS[0],) * 16 + (SECRETS[1], SECRETS[1], "whsec_foreign")
_AGES = (0,) * 50 + (299, 300, 301, -299, -300, -301, 10**6, -NOW)
_FORMATS = (
    "v1={v1},t={t}",
    " t = {t} , v0=x, v1 = {v1} ,",
    "t=1,t={t},v1={v1}",
    "t={t},t=1,v1={v1}",
    "t=00{t},v1={v1}",
    "t=-{t},v1={v1}",
    "t={t}.0,v1={v1}",
    "t={t}\xb2,v1={v1}",
    "t=\xb2,v1={v1}",
    "t=" + "9" * 400 + ",v1={v1}",
    "t=" + "9" * 5000 + ",v1={v1}",
    "t={t},v1={V1}",
    "t={t},v1=\xe9",
    "t={t},v1=\xe9,v1={v1}",
    "t={t},v1={v1},v1=\xff",
    "t={t},v1={v1}\xa0",
    "t={t},v1=\x00{v1}",
    "t={t}",
    "v1={v1}",
    "t={t};v1={v1}",
    "T={t},V1={v1}",
    "=,=,==,t={t},v1==,v1={v1}",
    "t={t}" + ",v1=x" * 1000 + ",v1={v1}",
)


def _event_id(choices: Choices, body: bytes) -> list[tuple[str, str]]:
    kind = choices.pick(("true",) * 14 + ("none",) * 6 + ("other", "any", "twice"))

    if kind == "none":
        return []

    if kind == "other":
        value = choices.pick(("", "evt_other", "e" * 60, "\xe9", " evt_1", "evt_1\n"))
    elif kind == "any":
        value = choices.binary(20).decode("latin-1")
    else:
        value = _id_of(body)

    return [("Sangho-Event-ID", value)] * (2 if kind == "twice" else 1)


def _id_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["id"]).encode("latin-1", "replace").decode("latin-1")
    except (ValueError, LookupError, TypeError, RecursionError):
        return "evt_1"


def _others(choices: Choices) -> list[tuple[str, str]]:
    headers = [("Content-Type", choices.pick(_CONTENT_TYPES))]

    if choices.pick(_OFTEN_NOT):
        headers.append(
            (choices.pick(_NAMES), choices.pick((*_VALUES, choices.binary(30).decode("latin-1"))))
        )

    return headers


_CONTENT_TYPES = ("application/json",) * 6 + (
    "",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "application/json; charset=utf-7",
    "\xff\xfe; =; charset=\xe9",
)
_NAMES = (
    "Content-Encoding",
    "Content-Type",
    "Expect",
    "Host",
    "Cookie",
    "Accept",
    "X-Forwarded-For",
    "Range",
    "Connection",
)
_VALUES = ("gzip", "100-continue", "a=\xe9; b", "[::1", "x" * 8000, "")
