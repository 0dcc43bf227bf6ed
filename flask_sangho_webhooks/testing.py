"""Help for tests of handlers: what is signed is what is sent. Needs no test framework."""

from __future__ import annotations

import collections.abc as c
import concurrent.futures
import hmac
import json
import threading
import time
import typing as t
import uuid

from flask import current_app, Flask, has_app_context
from werkzeug.datastructures import Headers
from werkzeug.routing import BuildError
from werkzeug.test import TestResponse

from .blueprint import EVENT_ID_HEADER, SIGNATURE_HEADER
from .errors import ConfigError
from .event import Event
from .event_types import EventType
from .extension import Endpoint, EXTENSION_KEY
from .samples import sample

API_VERSION = "2026-01-01"

START_TIMEOUT = 30
"""Seconds that a concurrent delivery waits for the others to be ready."""


def sign(body: bytes, secret: str, timestamp: int | None = None) -> str:
    """The value of ``Sangho-Signature`` for a body.

    :param body: the bytes that will be sent.
    :param secret: the endpoint's secret, its ``whsec_`` prefix included.
    :param timestamp: Unix seconds; the present by default.
    """
    seconds = int(time.time()) if timestamp is None else timestamp
    digest = hmac.digest(secret.encode(), b"%d.%b" % (seconds, body), "sha256")
    return f"t={seconds},v1={digest.hex()}"


def build_event(type: EventType | str, object: t.Any = None, **fields: t.Any) -> Event:
    """An event as Sangho would send it, with the bytes to sign and send in ``body``.

    It needs no request: pass it to a handler, or to ``webhooks.process`` in an app context.

    :param type: such as ``payment_intent.succeeded``.
    :param object: what the event is about, ``event.object``. Anything that JSON can express; by
        default a sample, for the known types.
    :param fields: other members of the event, such as ``id``, ``created`` (Unix seconds) or
        ``livemode``, in place of what they are by default: a new id, now, False.
    :raises ValueError: if there is no sample for the type, or the object is not JSON.
    :raises PayloadError: if ``type`` or ``id`` cannot be an event's.
    """
    if "data" not in fields:
        fields["data"] = {"object": sample(type) if object is None else object}

    payload = {
        "id": f"evt_{uuid.uuid4().hex}",
        "object": "event",
        "api_version": API_VERSION,
        "type": type,
        "created": int(time.time()),
        "livemode": False,
        **fields,
    }
    return Event.from_body(json.dumps(payload, ensure_ascii=False, allow_nan=False).encode())


class SanghoTestClient:
    """Delivers events to an endpoint of an app as Sangho does, over the app's test client.

    The secret is the app's own, the newest if there are several, and the path that of its route.
    Requests come over https, as Sangho's do, and without cookies. As with any test client of
    Flask, what a handler raises reaches the test if the app is ``TESTING``, and is answered 500
    otherwise.

    :param app: with the blueprint registered.
    :param name: of the endpoint, if the app has several; by default the only one, or the one with
        the default name.
    :param path: of the route, if it has variable parts.
    :raises ConfigError: if the app has no such endpoint, or no route for it.
    """

    event: Event | None
    """The last event that was delivered."""

    def __init__(self, app: Flask, *, name: str | None = None, path: str | None = None) -> None:
        self.app = app
        self.endpoint = find_endpoint(app, name)
        self.path = find_path(app, self.endpoint) if path is None else path
        self.event = None

    def deliver(
        self,
        type: EventType | str,
        object: t.Any = None,
        *,
        event_id: str | None = None,
        timestamp: int | None = None,
        secret: str | None = None,
        headers: c.Mapping[str, str] | None = None,
        **fields: t.Any,
    ) -> TestResponse:
        """Deliver a new event.

        :param type: such as ``payment_intent.succeeded``.
        :param object: what the event is about; by default a sample, for the known types.
        :param event_id: of the event; by default a new one.
        :param timestamp: of the signature, in Unix seconds; the present by default.
        :param secret: in place of the app's.
        :param headers: to add, or to send in place of the usual ones.
        :param fields: other members of the event, as in :func:`build_event`.
        :return: the answer.
        """
        event = _build(type, object, event_id, fields)
        return self.send(event, timestamp=timestamp, secret=secret, headers=headers)

    def redeliver(
        self,
        *,
        timestamp: int | None = None,
        secret: str | None = None,
        headers: c.Mapping[str, str] | None = None,
    ) -> TestResponse:
        """Deliver the last event again: the same bytes, with a fresh signature.

        :raises RuntimeError: if nothing was delivered before.
        """
        if self.event is None:
            raise RuntimeError("There is no event to deliver again. Call deliver() first.")

        return self.send(self.event, timestamp=timestamp, secret=secret, headers=headers)

    def deliver_concurrently(
        self,
        n: int,
        type: EventType | str,
        object: t.Any = None,
        *,
        event_id: str | None = None,
        timestamp: int | None = None,
        secret: str | None = None,
        headers: c.Mapping[str, str] | None = None,
        **fields: t.Any,
    ) -> list[TestResponse]:
        """Deliver one new event several times at the same moment, each in a thread of its own.

        One delivery is answered as the first; each of the others is a duplicate, or 503 while the
        first is unfinished. The parameters are those of :meth:`deliver`.

        SQLite in memory has one connection, on which the deliveries take turns. A test that binds
        ``db.session`` to an outer transaction has no use for this: all threads would share it.

        :param n: how many times.
        :return: the answers, in no particular order.
        """
        self.event = event = _build(type, object, event_id, fields)
        start = threading.Barrier(n)

        def post() -> TestResponse:
            start.wait(START_TIMEOUT)
            return self.send(event, timestamp=timestamp, secret=secret, headers=headers)

        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            posts = [pool.submit(post) for _ in range(n)]

        self._refresh()
        return [post.result() for post in posts]

    def send(
        self,
        event: Event,
        *,
        timestamp: int | None = None,
        secret: str | None = None,
        headers: c.Mapping[str, str] | None = None,
    ) -> TestResponse:
        """Deliver an event that :func:`build_event` has made. The parameters are those of
        :meth:`deliver`.
        """
        self.event = event
        secret = self.endpoint.config.secrets[0] if secret is None else secret
        client = self.app.test_client(use_cookies=False)
        sent = Headers({"Content-Type": "application/json", EVENT_ID_HEADER: event.id})
        sent[SIGNATURE_HEADER] = sign(event.body, secret, timestamp)
        sent.update(headers or {})

        try:
            return client.post(self.path, url_scheme="https", data=event.body, headers=sent)
        finally:
            self._refresh()

    def _refresh(self) -> None:
        """Let objects that the test has loaded in an app context of its own be read anew: handlers
        work on others, in a session that ends with the event.
        """
        db = self.endpoint.webhooks.db

        if db is None or not has_app_context() or current_app != self.app:
            return

        if db.session.registry.has() and not (db.session.dirty or db.session.deleted):
            db.session.expire_all()


def find_endpoint(app: Flask, name: str | None = None) -> Endpoint:
    """The endpoint of a name; by default the only one, or the one with the default name.

    :raises ConfigError: if the app has no such endpoint.
    """
    endpoints: dict[str, Endpoint] = app.extensions.get(EXTENSION_KEY, {})

    if name is None:
        name = next(iter(endpoints)) if len(endpoints) == 1 else EXTENSION_KEY

    if not endpoints:
        raise ConfigError(
            "The app has no endpoint for Sangho's webhooks. Did you forget to call"
            " 'app.register_blueprint(webhooks.blueprint)'?"
        )

    if name not in endpoints:
        raise ConfigError(
            f"The app has no endpoint named {name!r}. Name one of those that it has:"
            f" {', '.join(sorted(endpoints))}."
        )

    return endpoints[name]


def find_path(app: Flask, endpoint: Endpoint) -> str:
    """The path of an endpoint's route, or its URL where the route belongs to a host of its own.

    :raises ConfigError: if there is no route, or it has variable parts.
    """
    blueprint = endpoint.webhooks.blueprint
    # The name in the app: it differs where the blueprint is nested, or registered as another one.
    names = [name for name, registered in app.blueprints.items() if registered is blueprint]

    if not names:
        raise ConfigError(
            f"The app has no route for the endpoint {endpoint.webhooks.name!r}. Did you forget to"
            " call 'app.register_blueprint(webhooks.blueprint)'?"
        )

    host = app.config.get("SERVER_NAME") or "localhost"
    urls = app.url_map.bind(host, url_scheme="https")

    try:
        return urls.build(f"{names[0]}.receive", method="POST")
    except BuildError as error:
        raise ConfigError(
            f"The route of the endpoint {endpoint.webhooks.name!r} has variable parts. Say where"
            " to deliver: SanghoTestClient(app, path=…), or on the command line --url."
        ) from error


def _build(type: str, object: t.Any, event_id: str | None, fields: dict[str, t.Any]) -> Event:
    if event_id is not None:
        fields["id"] = event_id

    return build_event(type, object, **fields)
