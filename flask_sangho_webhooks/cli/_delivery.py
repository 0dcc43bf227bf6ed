"""One delivery of ``flask sangho trigger``, its answer, and what to fix if it is not a 2xx."""

from __future__ import annotations

import contextvars
import dataclasses
import http.client
import json
import ssl
import typing as t
import urllib.parse

import click
from flask import current_app, Flask, got_request_exception

from ..blueprint import EVENT_ID_HEADER, SIGNATURE_HEADER
from ..errors import WebhookError
from ..event import Event
from ..extension import Endpoint, EXTENSION_KEY
from ..testing import SanghoTestClient, sign

TIMEOUT = 30
"""Seconds that a server may be silent."""

_SHOWN = 500
"""Characters of an answer's body."""

_READ = 64 * 1024
"""Bytes of an answer's body."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery:
    """What is delivered, and where."""

    event: Event
    endpoint: Endpoint
    target: str
    """The path, or the URL of a server."""

    is_remote: bool
    has_own_secret: bool
    """Whether the command line gives the secret."""

    @property
    def view(self) -> str:
        return f"{self.endpoint.webhooks.name}.receive"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a delivery was answered."""

    status: int
    body: bytes
    location: str | None
    error: str | None = None
    """What the extension has to say of an error that it raised in this process."""

    @property
    def is_2xx(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_success(self) -> bool:
        """Whether the endpoint itself has taken the event."""
        return self.is_2xx and self.members.get("received") is True

    @property
    def members(self) -> dict[str, t.Any]:
        """Those of the body, if it is a JSON object, as the extension's answers are."""
        try:
            members = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}

        return members if isinstance(members, dict) else {}

    def __str__(self) -> str:
        text = " ".join(self.body.decode(errors="replace").split())
        printable = "".join(filter(str.isprintable, text))
        return f"{self.status} {printable[:_SHOWN]}{'…' if len(printable) > _SHOWN else ''}"


def to_app(client: SanghoTestClient, event: Event, secret: str) -> Answer:
    """Deliver an event to the app, in this process."""
    errors: list[str] = []

    def note(app: Flask, exception: Exception, **_: object) -> None:
        if isinstance(exception, WebhookError):
            errors.append(str(exception))

    # In a context of its own: each request has an app context, which ends with it.
    with got_request_exception.connected_to(note, client.app):
        response = contextvars.Context().run(client.send, event, secret=secret)

    error = errors[-1] if errors else None
    return Answer(response.status_code, response.data, response.location, error)


def to_server(url: str, event: Event, secret: str) -> Answer:
    """Deliver an event over HTTP. Redirects are not followed.

    :raises click.ClickException: if there is no answer.
    """
    parts = urllib.parse.urlsplit(url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    connection = kinds[parts.scheme](parts.netloc, timeout=TIMEOUT)
    headers = {
        "Content-Type": "application/json",
        EVENT_ID_HEADER: event.id,
        SIGNATURE_HEADER: sign(event.body, secret),
    }
    path = parts._replace(scheme="", netloc="", fragment="").geturl()

    try:
        connection.request("POST", path, event.body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(_READ), response.getheader("Location"))
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise click.ClickException(_no_answer(url, error)) from error
    finally:
        connection.close()


def _no_answer(url: str, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return (
            f"No server listens at {url}. Start it, such as with 'flask run', or leave out --url to"
            " deliver to the app itself, in this process."
        )

    if isinstance(error, TimeoutError):
        return (
            f"{url} has not answered for {TIMEOUT} seconds. If a handler takes that long, let a"
            " worker run it: Sangho does not wait for ever either."
        )

    if isinstance(error, ssl.SSLError):
        return (
            f"{url} does not speak TLS, or has a certificate that is not trusted ({error.reason})."
            " If it is your own, set SSL_CERT_FILE to its file."
        )

    return f"There is no answer from {url} ({type(error).__name__}: {error})."


def hint(answer: Answer, delivery: Delivery) -> str | None:
    """What to fix, where the answer does not say it."""
    if answer.is_success:
        return _hint_at_success(answer, delivery)

    prefix = delivery.endpoint.webhooks.config_prefix
    error = answer.members.get("error")

    if error == "mismatch":
        return _mismatch(prefix, delivery)

    if error == "malformed":
        return (
            f"Something on the way removes or changes {SIGNATURE_HEADER}: look at the proxies and"
            " the middleware in front."
        )

    if error == "expired":
        return f"The clocks of the two machines differ by more than {prefix}TOLERANCE allows."

    return None if error else _hint_at_others(answer, delivery)


def _hint_at_success(answer: Answer, delivery: Delivery) -> str | None:
    if answer.members.get("discarded") is True:
        return "A handler has discarded it; the log has the reason."

    if answer.members.get("handled") is not False:
        return None

    others = [
        name
        for name, endpoint in current_app.extensions[EXTENSION_KEY].items()
        if any(handler.matches(delivery.event.type) for handler in endpoint.webhooks.handlers)
        and endpoint.webhooks is not delivery.endpoint.webhooks
    ]

    if not others:
        return "No handler is registered for this type."

    return (
        f"No handler of {delivery.endpoint.webhooks.name!r} is registered for this type."
        f" {others[0]!r} has one: add --name {others[0]}."
    )


def _mismatch(prefix: str, delivery: Delivery) -> str:
    if not delivery.is_remote:
        return "The app has another secret than --secret."

    if delivery.has_own_secret:
        return (
            f"The server at {delivery.target} has another secret than the one that --secret gives."
            " If the two are the same, something on the way changes the body."
        )

    return (
        f"The server at {delivery.target} has another secret. Sign with its own: add --secret,"
        f" which asks for it, or set {prefix}SECRET (in the environment, FLASK_{prefix}SECRET) to"
        " it for this command. If the two are the same, something on the way changes the body."
    )


def _hint_at_others(answer: Answer, delivery: Delivery) -> str | None:
    """About an answer that something else has given in the endpoint's place."""
    if answer.is_2xx:
        return (
            "Something else has answered in the endpoint's place: Sangho takes the event for"
            f" processed, and forgets it. Look for another view at {delivery.target}, or a proxy or"
            " middleware in front."
        )

    if 300 <= answer.status < 400:
        return _redirect(answer.location or "", delivery)

    if "csrf" in str(answer).lower():
        return (
            f"CSRF protection has answered in the endpoint's place. Exempt the view"
            f" {delivery.view!r} from it: deliveries are signed."
        )

    if answer.status in (401, 403):
        return (
            "Something in front of the endpoint wants a login. Let deliveries through, by the"
            f" endpoint {delivery.view!r} or the path: they are signed."
        )

    if answer.status in (404, 405):
        return (
            f"No endpoint is there. Is {delivery.target} the address that you would give to Sangho?"
        )

    if answer.error is not None:
        return answer.error

    if answer.status == 500:
        return (
            "A handler, or something around it, has failed; the log says why. Nothing was"
            " recorded, and the next delivery runs the handlers again."
        )

    return None


def _redirect(location: str, delivery: Delivery) -> str:
    # Such as the login. A path that the app does not know may be that of a proxy in front.
    if _is_page(urllib.parse.urlsplit(location).path):
        return (
            f"The app redirects deliveries to {location}: a before_request function asks for a"
            f" login, or the like. Let the endpoint {delivery.view!r} through in it: deliveries are"
            " signed."
        )

    return (
        f"The answer is a redirect to {location}, and deliveries are not redirected. Deliver to the"
        " final address: give it as --url, and to Sangho."
    )


def _is_page(path: str) -> bool:
    """Whether the app has a view that can be looked at, unlike the endpoint."""
    return current_app.url_map.bind("localhost").test(path, "GET")
