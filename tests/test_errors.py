"""One tree of exceptions, each with a status and a reason, each fit to travel between processes."""

from __future__ import annotations

import copy
import math
import pickle

import pytest

from flask_sangho_webhooks import (
    ConfigError,
    Discard,
    EventInProgress,
    GuardUnavailable,
    PayloadError,
    RetryLater,
    SignatureError,
    WebhookError,
)

ERRORS: list[tuple[WebhookError, int, str]] = [
    (WebhookError("Anything."), 500, "error"),
    (ConfigError("Set a secret."), 500, "config"),
    (SignatureError("malformed"), 400, "malformed"),
    (SignatureError("expired"), 400, "expired"),
    (SignatureError("mismatch"), 401, "mismatch"),
    (PayloadError("The body is not JSON."), 400, "invalid_payload"),
    (PayloadError("The body is larger than 5 bytes.", "too_large"), 413, "too_large"),
    (PayloadError("The body is gone.", "body_unavailable"), 500, "body_unavailable"),
    (EventInProgress("Wait."), 503, "in_progress"),
    (GuardUnavailable("Locked."), 503, "unavailable"),
    (RetryLater(), 503, "retry_later"),
    (RetryLater(2.5), 503, "retry_later"),
    (Discard(), 200, "discarded"),
    (Discard("The order was deleted."), 200, "The order was deleted."),
]


@pytest.mark.parametrize(("error", "status", "reason"), ERRORS)
def test_status_and_reason(error: WebhookError, status: int, reason: str) -> None:
    assert (error.status, error.reason) == (status, reason)


@pytest.mark.parametrize("error", [error for error, *_ in ERRORS])
def test_one_base_catches_all(error: WebhookError) -> None:
    with pytest.raises(WebhookError):
        raise error


@pytest.mark.parametrize("error", [error for error, *_ in ERRORS])
def test_message_is_a_sentence(error: WebhookError) -> None:
    assert str(error) == "discarded" or str(error).endswith(".")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", [error for error, *_ in ERRORS])
def test_pickle_round_trip(error: WebhookError, protocol: int) -> None:
    other = pickle.loads(pickle.dumps(error, protocol))

    assert type(other) is type(error)
    assert (str(other), vars(other)) == (str(error), vars(error))
    assert (other.status, other.reason) == (error.status, error.reason)


@pytest.mark.parametrize("error", [error for error, *_ in ERRORS])
def test_copy(error: WebhookError) -> None:
    other = copy.copy(error)

    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("seconds", [0, 1, 0.5, 3600, 1e9])
def test_retry_later(seconds: float) -> None:
    assert RetryLater(seconds).seconds == seconds


def test_retry_later_in_a_minute() -> None:
    assert RetryLater().seconds == 60
    assert "60 seconds" in str(RetryLater())


@pytest.mark.parametrize("seconds", [-1, -0.1, math.nan, math.inf, -math.inf])
def test_retry_never_or_in_the_past(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"finite and not negative, not {seconds!r}"):
        RetryLater(seconds)


@pytest.mark.parametrize("seconds", ["60", None])
def test_retry_after_no_number(seconds: object) -> None:
    with pytest.raises(TypeError):
        RetryLater(seconds)  # type: ignore[arg-type]
