"""Every exception of the extension, in one tree. Each carries the HTTP status it maps to."""

from __future__ import annotations

import math
import typing as t

SignatureReason = t.Literal["malformed", "expired", "mismatch"]
PayloadReason = t.Literal["invalid_payload", "too_large", "body_unavailable"]

_SIGNATURE: dict[SignatureReason, tuple[int, str]] = {
    "malformed": (400, "The Sangho-Signature header is missing or malformed."),
    "expired": (400, "The signature's timestamp is outside the tolerance."),
    "mismatch": (401, "The signature does not match the body."),
}
_PAYLOAD: dict[PayloadReason, int] = {
    "invalid_payload": 400,
    "too_large": 413,
    "body_unavailable": 500,
}


class WebhookError(Exception):
    """Base of all errors of this extension."""

    status: int = 500
    """The HTTP status that the endpoint answers with."""

    reason: str = "error"
    """A stable, machine-readable name of what went wrong. In :exc:`Discard`, the handler's text."""


class ConfigError(WebhookError):
    """The extension is set up in a way that cannot work. The message says how to fix it."""

    reason = "config"


class SignatureError(WebhookError):
    """The delivery is not proven to come from Sangho.

    :param reason: ``malformed`` (400), ``expired`` (400) or ``mismatch`` (401), the verdicts of
        Sangho's official SDKs.
    """

    def __init__(self, reason: SignatureReason) -> None:
        self.reason: SignatureReason = reason
        self.status, message = _SIGNATURE[reason]
        super().__init__(message)

    def __reduce__(self) -> tuple[type[SignatureError], tuple[SignatureReason]]:
        return type(self), (self.reason,)


class PayloadError(WebhookError):
    """The body cannot be turned into an event.

    :param message: what is wrong with it, without any of its content.
    :param reason: ``invalid_payload`` (400), ``too_large`` (413) or ``body_unavailable`` (500).
    """

    def __init__(self, message: str, reason: PayloadReason = "invalid_payload") -> None:
        self.reason: PayloadReason = reason
        self.status = _PAYLOAD[reason]
        super().__init__(message)


class EventInProgress(WebhookError):
    """The same event is being processed right now. Nothing was run; deliver it again later."""

    status = 503
    reason = "in_progress"

    def __init__(self, message: str = "The event is being processed right now.") -> None:
        super().__init__(message)


class GuardUnavailable(WebhookError):
    """The store of processed event ids, or the queue's broker, is unreachable, locked or timed out.
    Deliver again later.
    """

    status = 503
    reason = "unavailable"


class RetryLater(WebhookError):
    """Raised by a handler that cannot finish now: its effects are rolled back, nothing is recorded
    and Sangho is asked to deliver the event again.

    :param seconds: how long the sender should wait, 60 by default, sent as ``Retry-After``.
    :raises ValueError: if ``seconds`` is negative or not finite.
    """

    status = 503
    reason = "retry_later"

    def __init__(self, seconds: float = 60) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"'seconds' must be finite and not negative, not {seconds!r}.")

        self.seconds = seconds
        super().__init__(f"A handler asked for a redelivery in {seconds:g} seconds.")

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float]]:
        return type(self), (self.seconds,)


class Discard(WebhookError):
    """Raised by a handler for an event that will never succeed: its effects are rolled back, the id
    is recorded, and the event is not delivered again.

    :param reason: why, for the log. Shown as given: leave secrets out of it.
    """

    status = 200

    def __init__(self, reason: str = "discarded") -> None:
        self.reason = reason
        super().__init__(reason)
