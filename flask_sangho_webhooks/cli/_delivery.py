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

from ..blueprint import EVENT_ID_HEADER, SIGNATURE_HEADER
from ..event import Event
from ..extension import Endpoint
from ..testing import SanghoTestClient, sign

TIMEOUT = 30
"""Seconds that a server may be silent."""

_SHOWN = 500
"""Characters of an answer's body."""

_READ = 64 * 1024
"""Bytes of an answer's body."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a delivery was answered."""

    status: int
    body: bytes
    location: str | None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

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
    # In a context of its own: each request has an app context, which ends with it.
    response = contextvars.Context().run(client.send, event, secret=secret)
    return Answer(response.status_code, response.data, response.location)


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


def hint(answer: Answer, endpoint: Endpoint, target: str, *, is_remote: bool) -> str | None:
    """What to fix, where the answer does not say it.

    :param target: the path or URL that the event was delivered to.
    """
    if answer.is_success:
        unhandled = answer.members.get("handled") is False
        return "No handler is registered for this type." if unhandled else None

    name, prefix = endpoint.webhooks.name, endpoint.webhooks.config_prefix
    error = answer.members.get("error")

    if error == "mismatch":
        return (
            _mismatch(prefix, target) if is_remote else "The app has another secret than --secret."
        )

    if error == "malformed":
        return (
            f"Something on the way removes or changes {SIGNATURE_HEADER}: look at the proxies and"
            " the middleware in front."
        )

    if error == "expired":
        return f"The clocks of the two machines differ by more than {prefix}TOLERANCE allows."

    return None if error else _hint_at_others(answer, f"{name}.receive", target)


def _mismatch(prefix: str, url: str) -> str:
    return (
        f"The server at {url} has another secret. Sign with its own: add --secret, which asks for"
        f" it, or set {prefix}SECRET (in the environment, FLASK_{prefix}SECRET) to it for this"
        " command. If the two are the same, something on the way changes the body."
    )


def _hint_at_others(answer: Answer, view: str, target: str) -> str | None:
    """About an answer that something else has given in the endpoint's place."""
    if 300 <= answer.status < 400:
        return (
            f"The answer is a redirect to {answer.location}, and deliveries are not redirected."
            " Deliver to the final address: give it as --url, and to Sangho."
        )

    if "csrf" in str(answer).lower():
        return (
            f"CSRF protection has answered in the endpoint's place. Exempt the view {view!r} from"
            " it: deliveries are signed."
        )

    if answer.status in (401, 403):
        return (
            "Something in front of the endpoint wants a login. Let deliveries through, by the"
            f" endpoint {view!r} or the path: they are signed."
        )

    if answer.status in (404, 405):
        return f"No endpoint is there. Is {target} the address that you would give to Sangho?"

    if answer.status == 500:
        return (
            "A handler, or something around it, has failed; the log has the traceback. Nothing was"
            " recorded, and the next delivery runs the handlers again."
        )

    return None
