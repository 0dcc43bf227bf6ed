"""Verification of ``Sangho-Signature``. Pure: bytes in, verdict out."""

from __future__ import annotations

import collections.abc as c
import functools
import hashlib
import re
import time
import typing as t
from hmac import compare_digest

from .errors import SignatureError

if t.TYPE_CHECKING:
    from hashlib import _Hash

_BLOCK = 64
"""Bytes that SHA-256 takes at once."""

_is_usual = re.compile("t=([0-9]{1,15}),v1=([0-9a-f]{64})").fullmatch


def verify(
    body: bytes,
    header: str | None,
    secrets: str | c.Sequence[str],
    tolerance: float = 300,
    *,
    now: float | None = None,
) -> int:
    """Verify the signature of one delivery.

    The verdicts are those of the official SDK (``sangho`` 0.2.0, ``construct_event``). Where the
    SDK fails with an exception of another kind, the verdict is ``malformed`` for a timestamp that
    is no usable number, and a ``v1`` outside ASCII matches nothing.

    :param body: the body exactly as it was received.
    :param header: the value of ``Sangho-Signature``, or None if there was none.
    :param secrets: the endpoint's secret, or several, newest first. During a rotation any of them
        may match.
    :param tolerance: greatest age of the timestamp in seconds, in the past and in the future.
    :param now: the time to compare with, in Unix seconds; the system's clock by default.
    :return: the position in ``secrets`` of the first one that matched.
    :raises SignatureError: with the reason ``malformed``, ``expired`` or ``mismatch``.
    """
    if usual := _is_usual(header or ""):
        timestamp, candidates = int(usual[1]), [usual[2]]
    else:
        timestamp, candidates = _parse(header or "")

    if isinstance(secrets, str):
        secrets = (secrets,)

    try:
        age = abs((time.time() if now is None else float(now)) - timestamp)
    except OverflowError:
        raise SignatureError("malformed") from None

    if age > tolerance:
        raise SignatureError("expired")

    # The integer is signed as it prints, not as it was written ("t=007" signs "7").
    message = b"%d.%b" % (timestamp, body)
    matched: int | None = None

    # No early exit: the time must not tell which secret or which v1 matched.
    for position, secret in enumerate(secrets):
        if not secret:
            continue

        # As hmac.digest(), half of whose time goes into the key.
        inner, outer = _keyed(secret)
        inner = inner.copy()
        inner.update(message)
        outer = outer.copy()
        outer.update(inner.digest())
        expected = outer.hexdigest()

        for candidate in candidates:
            if compare_digest(expected, candidate) and matched is None:
                matched = position

    if matched is None:
        raise SignatureError("mismatch")

    return matched


@functools.lru_cache(maxsize=64)
def _keyed(secret: str) -> tuple[_Hash, _Hash]:
    """The inner and the outer hash of HMAC (RFC 2104), before the message."""
    key = secret.encode()

    if len(key) > _BLOCK:
        key = hashlib.sha256(key).digest()

    key = key.ljust(_BLOCK, b"\0")
    return (
        hashlib.sha256(bytes(byte ^ 0x36 for byte in key)),
        hashlib.sha256(bytes(byte ^ 0x5C for byte in key)),
    )


def _parse(header: str) -> tuple[int, list[str]]:
    """Split the header into its timestamp and the ``v1`` values that can be compared."""
    timestamp: int | None = None
    signatures: list[str] = []

    for part in header.split(","):
        key, separator, value = part.partition("=")

        if not separator:
            continue

        key, value = key.strip(), value.strip()

        if key == "t":
            try:
                # isdigit() is the SDK's test; it also refuses the sign that int() would take.
                timestamp = int(value) if value.isdigit() else None
            except ValueError:
                timestamp = None

            if timestamp is None:
                raise SignatureError("malformed")
        elif key == "v1" and value:
            signatures.append(value)

    if timestamp is None or not signatures:
        raise SignatureError("malformed")

    # compare_digest() refuses text outside ASCII; no hexadecimal digest contains any.
    return timestamp, [value for value in signatures if value.isascii()]
