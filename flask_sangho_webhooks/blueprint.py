"""HTTP in, HTTP out."""

from __future__ import annotations

import collections
import collections.abc as c
import io
import json
import logging
import math
import sys
import time
import typing as t

from flask import Blueprint, Flask, Request, Response
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import get_content_length

from ._context import this_app, this_request
from ._log import outcome_extra
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
from .signals import delivery_rejected, send
from .signature import verify

if t.TYPE_CHECKING:
    from flask.sansio.app import App

    from .config import Config
    from .extension import Endpoint, SanghoWebhooks

SIGNATURE_HEADER = "Sangho-Signature"
EVENT_ID_HEADER = "Sangho-Event-ID"

_SIGNATURE = "HTTP_SANGHO_SIGNATURE"
_EVENT_ID = "HTTP_SANGHO_EVENT_ID"

MAX_DRAIN = 32 * 1024 * 1024
"""Bytes of a body that is too large which are read and thrown away."""

logger = logging.getLogger("flask_sangho_webhooks")

_LOST = (
    "The connection ended early, or something has read the body before: WSGI middleware, or a"
    " url_value_preprocessor of the app"
)

_HINTS = {
    "mismatch": " Either {prefix}SECRET is not this endpoint's, or a proxy has changed the body.",
    "expired": " Is the clock of this machine right?",
    "too_large": " {prefix}MAX_BODY is the limit.",
}

# As Flask itself writes them, with sorted members.
_ANSWERS: dict[Outcome, tuple[int, str]] = {
    Outcome.PROCESSED: (200, '{"received":true}'),
    Outcome.DUPLICATE: (200, '{"duplicate":true,"received":true}'),
    Outcome.DISCARDED: (200, '{"discarded":true,"received":true}'),
    Outcome.UNHANDLED: (200, '{"handled":false,"received":true}'),
    Outcome.QUEUED: (202, '{"queued":true,"received":true}'),
}


class WebhookBlueprint(Blueprint):
    """The route of one endpoint. Made by :attr:`.SanghoWebhooks.blueprint`."""

    def __init__(self, webhooks: SanghoWebhooks) -> None:
        super().__init__(webhooks.name, __name__)
        self.webhooks = webhooks

        def receive() -> Response:
            return _receive(webhooks)

        self.add_url_rule(webhooks.path, "receive", receive, methods=["POST"], strict_slashes=False)
        # Runs before every before_request function, also the app's own: the body is read, and
        # cached for all of them, before one of them can consume it.
        self.url_value_preprocessor(lambda endpoint, values: _prepare(webhooks))
        self.after_request(_keep_promise)

    def register(self, app: App, options: dict[str, t.Any]) -> None:
        if not self.webhooks.is_initialized(app):
            # Before the blueprint leaves a trace: a failed registration can be repeated.
            self.webhooks.init_app(t.cast(Flask, app))

        super().register(app, options)


def _prepare(webhooks: SanghoWebhooks) -> None:
    posted: t.Any = this_request()

    if posted.method != "POST":
        return

    # Flask-WTF's; deliveries carry a signature in place of a token.
    csrf: t.Any = this_app().extensions.get("csrf")

    if isinstance(getattr(csrf, "_exempt_views", None), set):
        csrf.exempt(f"{__name__}.receive")

    posted.sangho_endpoint = endpoint = webhooks.endpoint()

    try:
        posted.sangho_body = _read_body(posted, endpoint.config.max_body)
    except PayloadError as error:
        posted.sangho_body = error


def _keep_promise(response: Response) -> Response:
    """Keep others from answering a delivery with 2xx: Sangho would take the event for processed. An
    error handler that forgets the status is enough.
    """
    posted = this_request()

    # Once only: if another function after the request fails, an error handler answers anew.
    if posted.__dict__.pop("sangho_answered", False) or posted.method != "POST":
        return response

    if 200 <= response.status_code < 300:
        logger.error(
            "A delivery that was not processed was about to be answered with %d, which would lose"
            " the event, and is answered with 500. Look for a before_request function, an error"
            " handler or an abort() in a handler that makes this response.",
            response.status_code,
        )
        response.status_code = 500

    return response


def _read_body(posted: Request, limit: int) -> bytes:
    """Read the raw body and leave it where the app's own functions will look for it.

    :param limit: greatest size in bytes.
    :raises PayloadError: ``too_large``, or ``body_unavailable`` where bytes were promised and are
        not there.
    """
    # The bound is here. The app's own are for its own routes.
    posted.max_content_length = posted.max_form_memory_size = sys.maxsize
    promised = get_content_length(posted.environ)
    body = b""

    try:
        stream = _stream(posted, promised or 0)
        body = b"".join(_pieces(stream, limit + 1))

        if len(body) > limit:
            # A client that is still sending when the connection closes sees a reset in place of
            # the answer.
            collections.deque(_pieces(stream, MAX_DRAIN), maxlen=0)
    except RequestEntityTooLarge:  # a Content-Length beyond even sys.maxsize
        raise _too_large(limit) from None
    except Exception as error:  # each server has its own for a body that breaks off
        raise _unavailable(f"reading it failed with {type(error).__name__}. {_LOST}") from None
    finally:
        posted.stream = io.BytesIO(body)

    # The new stream, or what a url_value_preprocessor of the app has read and cached before.
    body = posted.get_data(cache=True)

    if len(body) > limit:
        raise _too_large(limit)

    if promised is not None and len(body) < promised:
        raise _unavailable(f"{len(body)} of {promised} bytes are there. {_LOST}")

    if not body and "chunked" in posted.headers.get("Transfer-Encoding", "").lower():
        if "wsgi.input_terminated" in posted.environ:
            raise _unavailable(f"it was sent in chunks, and none is there. {_LOST}")

        raise _unavailable(
            "the server does not support chunked requests (it does not set"
            " 'wsgi.input_terminated'). Use one that does, such as gunicorn, or let the proxy in"
            " front buffer requests"
        )

    return body


def _stream(posted: Request, promised: int) -> t.IO[bytes]:
    """The body's stream, which ends with the body.

    :param promised: size in bytes, or 0.
    :raises RequestEntityTooLarge: if it is greater than that of anything.
    """
    # Where the server ends it, nothing of Werkzeug's is needed around it. The app may have put
    # something else in its place.
    is_untouched = "stream" not in posted.__dict__ and type(posted).stream is Request.stream
    ends_itself = "wsgi.input_terminated" in posted.environ and promised <= sys.maxsize
    return posted.input_stream if is_untouched and ends_itself else posted.stream


def _pieces(stream: t.IO[bytes], size: int) -> c.Iterator[bytes]:
    """At most ``size`` bytes of a stream, as they come."""
    while size > 0 and (piece := stream.read(min(size, 64 * 1024))):
        size -= len(piece)
        yield piece


def _too_large(limit: int) -> PayloadError:
    return PayloadError(f"The body is larger than {limit} bytes.", "too_large")


def _unavailable(cause: str) -> PayloadError:
    logger.error("The body of a delivery is not available: %s.", cause)
    return PayloadError("The server could not read the request's body.", "body_unavailable")


def _receive(webhooks: SanghoWebhooks) -> Response:
    posted: t.Any = this_request()
    endpoint: Endpoint = posted.sangho_endpoint
    started = time.monotonic()

    try:
        event = _verified_event(endpoint.config, posted)
    except (SignatureError, PayloadError) as error:
        return _reject(webhooks, error, time.monotonic() - started)

    try:
        outcome = webhooks.receive(event)
    except (EventInProgress, GuardUnavailable, RetryLater) as error:
        return _retry(endpoint, event, error, time.monotonic() - started)

    return _answer(*_ANSWERS[outcome])


def _verified_event(config: Config, posted: t.Any) -> Event:
    body: bytes | PayloadError = posted.sangho_body

    if isinstance(body, PayloadError):
        raise body

    # Not its headers, which look each name up in here.
    environ = posted.environ

    if environ.get("HTTP_CONTENT_ENCODING"):
        logger.warning(
            "A delivery has a Content-Encoding. Sangho signs the bytes that it sends: a proxy that"
            " compresses or decompresses requests must leave this path alone."
        )

    position = verify(body, environ.get(_SIGNATURE), config.secrets, config.tolerance)

    if position > 0:
        logger.warning(
            "A delivery was verified with an older secret, number %d of %d. Sangho still uses it.",
            position + 1,
            len(config.secrets),
        )

    return Event.from_body(body, environ.get(_EVENT_ID))


def _reject(
    webhooks: SanghoWebhooks, error: SignatureError | PayloadError, seconds: float
) -> Response:
    logger.warning(
        "A delivery to %s was rejected (%s): %s%s",
        webhooks.name,
        error.reason,
        error,
        _HINTS.get(error.reason, "").format(prefix=webhooks.config_prefix),
        extra=outcome_extra(error.reason, seconds=seconds),
    )
    send(delivery_rejected, webhooks=webhooks, reason=error.reason, status=error.status)
    return _error(error)


def _retry(endpoint: Endpoint, event: Event, error: WebhookError, seconds: float) -> Response:
    logger.warning(
        "Event %s (%s) was not processed, and is left to a later delivery: %s",
        event.id,
        event.type,
        error,
        extra=outcome_extra(error.reason, event, seconds),
    )
    response = _error(error)
    wait = error.seconds if isinstance(error, RetryLater) else endpoint.config.retry_after
    response.headers["Retry-After"] = str(math.ceil(wait))
    return response


def _error(error: WebhookError) -> Response:
    body = {"error": error.reason, "message": str(error)}
    return _answer(error.status, json.dumps(body, separators=(",", ":")))


def _answer(status: int, body: str) -> Response:
    t.cast(t.Any, this_request()).sangho_answered = True
    return this_app().response_class(f"{body}\n", status, content_type="application/json")
