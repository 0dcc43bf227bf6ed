"""HTTP in, HTTP out."""

from __future__ import annotations

import logging
import math
import typing as t

from flask import Blueprint, current_app, Flask, g, request, Response
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from .errors import (
    EventInProgress,
    GuardUnavailable,
    PayloadError,
    RetryLater,
    SignatureError,
    WebhookError,
)
from .event import Event
from .guards import Outcome
from .signals import delivery_rejected
from .signature import verify

if t.TYPE_CHECKING:
    from flask.sansio.app import App

    from .extension import Endpoint, SanghoWebhooks

SIGNATURE_HEADER = "Sangho-Signature"
EVENT_ID_HEADER = "Sangho-Event-ID"

logger = logging.getLogger("flask_sangho_webhooks")

_ANSWERS: dict[Outcome, tuple[int, dict[str, bool]]] = {
    Outcome.PROCESSED: (200, {"received": True}),
    Outcome.DUPLICATE: (200, {"received": True, "duplicate": True}),
    Outcome.DISCARDED: (200, {"received": True, "discarded": True}),
    Outcome.UNHANDLED: (200, {"received": True, "handled": False}),
    Outcome.QUEUED: (202, {"received": True, "queued": True}),
}


class WebhookBlueprint(Blueprint):
    """The route of one endpoint. Made by :attr:`.SanghoWebhooks.blueprint`."""

    def __init__(self, webhooks: SanghoWebhooks) -> None:
        super().__init__(webhooks.name, __name__)
        self.webhooks = webhooks

        def receive() -> Response:
            return _receive(webhooks)

        # One name for the views of all endpoints, by which CSRFProtect knows them.
        receive.__module__ = __name__
        receive.__qualname__ = receive.__name__
        self.add_url_rule(webhooks.path, "receive", receive, methods=["POST"], strict_slashes=False)
        # Runs before every before_request function, also the app's own: the body is read, and
        # cached for all of them, before one of them can consume it.
        self.url_value_preprocessor(lambda endpoint, values: _prepare(webhooks))

    def register(self, app: App, options: dict[str, t.Any]) -> None:
        if not self.webhooks.is_initialized(app):
            # Before the blueprint leaves a trace: a failed registration can be repeated.
            self.webhooks.init_app(t.cast(Flask, app))

        super().register(app, options)


def _prepare(webhooks: SanghoWebhooks) -> None:
    if request.method != "POST":
        return

    csrf = current_app.extensions.get("csrf")

    if csrf is not None:  # Flask-WTF; deliveries carry a signature in place of a token
        csrf.exempt(f"{__name__}.receive")

    try:
        g.sangho_body = _read_body(webhooks.endpoint().config.max_body)
    except PayloadError as error:
        g.sangho_body = error


def _read_body(limit: int) -> bytes:
    """Read the raw body and leave it in Werkzeug's cache.

    :param limit: greatest size in bytes.
    :raises PayloadError: ``too_large``, or ``body_unavailable`` where bytes were promised and are
        not there.
    """
    # Werkzeug cuts a chunked body at its limit without a word; one byte more than ours shows it.
    request.max_content_length = limit + 1

    try:
        body = request.get_data(cache=True)
    except RequestEntityTooLarge:
        raise PayloadError(f"The body is larger than {limit} bytes.", "too_large") from None
    except ClientDisconnected:
        raise _unavailable("the body ended before its Content-Length") from None

    if len(body) > limit:
        raise PayloadError(f"The body is larger than {limit} bytes.", "too_large")

    if len(body) != (request.content_length or len(body)):
        raise _unavailable(
            "something has read the body before: WSGI middleware, or a url_value_preprocessor of"
            " the app"
        )

    if (
        not body
        and "chunked" in request.headers.get("Transfer-Encoding", "").lower()
        and "wsgi.input_terminated" not in request.environ
    ):
        raise _unavailable(
            "the server does not support chunked requests (it does not set"
            " 'wsgi.input_terminated'); use one that does, such as gunicorn, or let the proxy in"
            " front buffer requests"
        )

    return body


def _unavailable(cause: str) -> PayloadError:
    logger.error("The body of a delivery is not available: %s.", cause)
    return PayloadError("The server could not read the request's body.", "body_unavailable")


def _receive(webhooks: SanghoWebhooks) -> Response:
    endpoint = webhooks.endpoint()

    try:
        event = _verified_event(endpoint)
    except (SignatureError, PayloadError) as error:
        return _reject(webhooks, error)

    try:
        outcome = webhooks.receive(event)
    except (EventInProgress, GuardUnavailable, RetryLater) as error:
        return _retry(endpoint, event, error)

    status, body = _ANSWERS[outcome]
    return _answer(status, body)


def _verified_event(endpoint: Endpoint) -> Event:
    body: bytes | PayloadError = g.sangho_body

    if isinstance(body, PayloadError):
        raise body

    config = endpoint.config

    try:
        position = verify(
            body, request.headers.get(SIGNATURE_HEADER), config.secrets, config.tolerance
        )
    except SignatureError as error:
        encoding = request.headers.get("Content-Encoding")

        if error.reason == "mismatch" and encoding is not None:
            logger.warning(
                "A delivery of %d bytes with a Content-Encoding does not match its signature. A"
                " proxy that compresses or decompresses requests must leave this path alone.",
                len(body),
            )

        raise

    if position > 0:
        logger.info(
            "A delivery was verified with secret %d of %d; 0 is the newest.",
            position,
            len(config.secrets),
        )

    return Event.from_body(body, request.headers.get(EVENT_ID_HEADER))


def _reject(webhooks: SanghoWebhooks, error: SignatureError | PayloadError) -> Response:
    logger.warning("A delivery was rejected: %s", error.reason, extra={"outcome": error.reason})
    delivery_rejected.send(
        current_app._get_current_object(),  # type: ignore[attr-defined]
        webhooks=webhooks,
        reason=error.reason,
        status=error.status,
    )
    return _error(error)


def _retry(endpoint: Endpoint, event: Event, error: WebhookError) -> Response:
    logger.warning(
        "Event %s (%s) was not processed, and will be on a later delivery: %s",
        event.id,
        event.type,
        error,
        extra={"event_id": event.id, "event_type": event.type, "outcome": error.reason},
    )
    response = _error(error)
    seconds = error.seconds if isinstance(error, RetryLater) else endpoint.config.retry_after
    response.headers["Retry-After"] = str(math.ceil(seconds))
    return response


def _error(error: WebhookError) -> Response:
    return _answer(error.status, {"error": error.reason, "message": str(error)})


def _answer(status: int, body: dict[str, t.Any]) -> Response:
    response = t.cast(Response, current_app.json.response(body))
    response.status_code = status
    return response
