"""Help for tests of handlers: what is signed is what is sent."""

from __future__ import annotations

import hmac
import time


def sign(body: bytes, secret: str, timestamp: int | None = None) -> str:
    """The value of ``Sangho-Signature`` for a body.

    :param body: the bytes that will be sent.
    :param secret: the endpoint's secret, its ``whsec_`` prefix included.
    :param timestamp: Unix seconds; the present by default.
    """
    seconds = int(time.time()) if timestamp is None else timestamp
    digest = hmac.digest(secret.encode(), b"%d.%b" % (seconds, body), "sha256")
    return f"t={seconds},v1={digest.hex()}"
