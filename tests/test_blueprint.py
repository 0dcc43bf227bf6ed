"""Bodies, headers, routes, and the app's own functions around the endpoint."""

from __future__ import annotations

import collections.abc as c
import gzip
import io
import json
import logging
import typing as t

import pytest
from flask import Blueprint, Flask, Request, request
from flask_sqlalchemy import SQLAlchemy
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]
from werkzeug.test import run_wsgi_app, TestResponse
from werkzeug.utils import cached_property

from flask_sangho_webhooks import Event, SanghoWebhooks
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, Shop, TYPE

if t.TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LIMIT = 2000
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
RECEIVED = (200, {"received": True})


@pytest.fixture
def shop(sqlite_url: str) -> c.Iterator[Shop]:
    """A shop with a small limit, whose handler has an effect."""
    with Shop(sqlite_url, config={"SANGHO_WEBHOOK_MAX_BODY": LIMIT}) as shop:

        @shop.webhooks.on(TYPE)
        def grant(event: Event) -> None:
            shop.grant(event.id)

        yield shop


def answer(response: TestResponse) -> tuple[int, t.Any]:
    return response.status_code, response.json


def refusal(response: TestResponse) -> tuple[int, str]:
    assert response.json is not None
    assert list(response.json) == ["error", "message"]
    return response.status_code, response.json["error"]


def sized_body(size: int) -> bytes:
    """An event of exactly this many bytes."""
    return event_body(padding="")[:-2] + b"x" * (size - len(event_body(padding=""))) + b'"}'


def post(
    shop: Shop,
    body: bytes,
    *,
    chunked: bool = False,
    content_type: str = "application/json",
    path: str = "/webhook",
    headers: dict[str, str] | None = None,
    environ: dict[str, t.Any] | None = None,
) -> TestResponse:
    """Sign and post a body, as a server that supports chunked requests hands it over."""
    headers = {"Sangho-Signature": sign(body, SECRET), **(headers or {})}
    environ = dict(environ or {})

    if chunked:
        headers["Transfer-Encoding"] = "chunked"
        environ["wsgi.input_terminated"] = True

    return shop.app.test_client().post(
        path, data=body, content_type=content_type, headers=headers, environ_overrides=environ
    )


def errors(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


# ------------------------------------------------------------------------ size


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("size", "status"), [(LIMIT, 200), (LIMIT + 1, 413), (LIMIT + 2, 413), (50 * LIMIT, 413)]
)
def test_limit(shop: Shop, size: int, status: int, chunked: bool) -> None:
    body = sized_body(size)
    assert len(body) == size

    response = post(shop, body, chunked=chunked)

    if status == 200:
        assert answer(response) == RECEIVED
    else:
        assert refusal(response) == (413, "too_large")
        assert "Retry-After" not in response.headers
        assert shop.recorded() == []


@pytest.mark.parametrize("content_type", [FORM, MULTIPART])
@pytest.mark.parametrize("chunked", [False, True])
def test_limits_of_the_app_are_for_its_own_routes(
    shop: Shop, content_type: str, chunked: bool
) -> None:
    shop.app.config.update(MAX_CONTENT_LENGTH=10, MAX_FORM_MEMORY_SIZE=10)
    shop.app.before_request(touch_everything)

    response = post(shop, event_body(), content_type=content_type, chunked=chunked)

    assert answer(response) == RECEIVED


@pytest.mark.parametrize(
    ("length", "size"), [(2**63 - 1, LIMIT + 1), (2**63, LIMIT), (10**30, LIMIT)]
)
def test_promise_of_more_than_any_body(shop: Shop, length: int, size: int) -> None:
    environ = {"CONTENT_LENGTH": str(length), "wsgi.input_terminated": True}

    response = post(shop, sized_body(size), environ=environ)

    assert refusal(response) == (413, "too_large")


@pytest.mark.parametrize("content_type", ["application/json", FORM, MULTIPART])
def test_too_large_for_the_app_too(shop: Shop, content_type: str) -> None:
    shop.app.config["MAX_CONTENT_LENGTH"] = 10
    shop.app.before_request(touch_everything)

    response = post(shop, sized_body(50 * LIMIT), content_type=content_type)

    assert refusal(response) == (413, "too_large")


# ------------------------------------------------------------------ the missing body


def test_empty_body_with_a_valid_signature(shop: Shop) -> None:
    assert refusal(post(shop, b"")) == (400, "invalid_payload")


def test_empty_chunked_body_with_a_valid_signature(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    assert refusal(post(shop, b"", chunked=True)) == (500, "body_unavailable")
    assert "it was sent in chunks, and none is there" in errors(caplog)


@pytest.mark.parametrize("arrived", [0, 100])
def test_less_than_the_content_length(
    shop: Shop, arrived: int, caplog: pytest.LogCaptureFixture
) -> None:
    body = event_body()
    stream = io.BytesIO(body[:arrived])

    response = post(shop, body, environ={"wsgi.input": stream, "wsgi.input_terminated": True})

    assert refusal(response) == (500, "body_unavailable")
    assert f"{arrived} of {len(body)} bytes are there" in errors(caplog)
    assert shop.recorded() == []


class BrokenStream(io.RawIOBase):
    """A body that breaks off with an error, as a server reports it."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "chunked", "name"),
    [
        (ConnectionResetError(), False, "ClientDisconnected"),  # Werkzeug's own
        (ConnectionResetError(), True, "ConnectionResetError"),
        (KeyError("trailer"), False, "KeyError"),
        (KeyError("trailer"), True, "KeyError"),
    ],
)
def test_reading_fails(
    shop: Shop, error: Exception, chunked: bool, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.app.before_request(touch_everything)

    response = post(
        shop, event_body(), chunked=chunked, environ={"wsgi.input": BrokenStream(error)}
    )

    assert refusal(response) == (500, "body_unavailable")
    assert f"reading it failed with {name}" in errors(caplog)


def test_server_without_support_for_chunks(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    body = event_body()
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/webhook",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "HTTP_TRANSFER_ENCODING": "chunked",
        "HTTP_SANGHO_SIGNATURE": sign(body, SECRET),
    }

    content, status, _ = run_wsgi_app(shop.app, environ, buffered=True)

    assert status.startswith("500 ")
    assert json.loads(b"".join(content))["error"] == "body_unavailable"
    assert "'wsgi.input_terminated'" in errors(caplog)
    assert shop.recorded() == []


@pytest.mark.parametrize("chunked", [False, True])
def test_middleware_has_read_the_body(
    shop: Shop, chunked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop.app.wsgi_app = reading_middleware(shop.app.wsgi_app)  # type: ignore[assignment, method-assign]

    assert refusal(post(shop, event_body(), chunked=chunked)) == (500, "body_unavailable")
    assert "WSGI middleware" in errors(caplog)


def reading_middleware(inner: WSGIApplication) -> WSGIApplication:
    def middleware(environ: WSGIEnvironment, start_response: StartResponse) -> c.Iterable[bytes]:
        environ["wsgi.input"].read()
        return inner(environ, start_response)

    return middleware


@pytest.mark.parametrize("chunked", [False, True])
def test_url_value_preprocessor_has_read_the_body(
    shop: Shop, chunked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop.app.url_value_preprocessor(lambda endpoint, values: touch_everything())

    response = post(shop, event_body(), content_type=FORM, chunked=chunked)

    assert refusal(response) == (500, "body_unavailable")
    assert "url_value_preprocessor" in errors(caplog)


@pytest.mark.parametrize("chunked", [False, True])
def test_url_value_preprocessor_has_cached_the_body(shop: Shop, chunked: bool) -> None:
    @shop.app.url_value_preprocessor
    def cache(endpoint: str | None, values: dict[str, t.Any] | None) -> None:
        request.get_data()

    assert answer(post(shop, event_body(), chunked=chunked)) == RECEIVED


@pytest.mark.parametrize("chunked", [False, True])
def test_url_value_preprocessor_has_replaced_the_stream(shop: Shop, chunked: bool) -> None:
    @shop.app.url_value_preprocessor
    def replace(endpoint: str | None, values: dict[str, t.Any] | None) -> None:
        request.stream = io.BytesIO(request.stream.read())

    assert answer(post(shop, event_body(), chunked=chunked)) == RECEIVED


@pytest.mark.parametrize("chunked", [False, True])
def test_request_class_with_a_stream_of_its_own(shop: Shop, chunked: bool) -> None:
    class Reversed(Request):
        @cached_property
        def stream(self) -> t.IO[bytes]:
            return io.BytesIO(self.input_stream.read()[::-1])

    shop.app.request_class = Reversed
    body = event_body()

    headers = {"Sangho-Signature": sign(body, SECRET)}

    response = post(shop, body[::-1], chunked=chunked, headers=headers)

    assert answer(response) == RECEIVED


# ------------------------------------------------------- functions of the app around it


def touch_everything() -> None:
    """What a request logger does."""
    _ = request.form, request.files, request.get_data(), request.stream.read()
    request.get_json(silent=True)


@pytest.mark.parametrize("content_type", ["application/json", FORM, MULTIPART])
@pytest.mark.parametrize("chunked", [False, True])
def test_before_request_that_touches_the_body(shop: Shop, content_type: str, chunked: bool) -> None:
    shop.app.before_request(touch_everything)

    assert answer(post(shop, event_body(), content_type=content_type, chunked=chunked)) == RECEIVED


def test_before_request_still_sees_the_data(shop: Shop) -> None:
    seen: list[object] = []

    @shop.app.before_request
    def look() -> None:
        seen.extend([request.form.to_dict(), request.get_data()])

    response = post(shop, b"a=1&b=2", content_type=FORM)

    assert seen == [{"a": "1", "b": "2"}, b"a=1&b=2"]
    assert refusal(response) == (400, "invalid_payload")


@pytest.mark.parametrize(
    "body",
    [
        '{"id": "evt_1", "type": "%s", "note": "\N{GRINNING FACE} caf\xe9"}',
        r'{"id": "evt_1", "type": "%s", "note": "\ud83d\ude00 caf\u00e9"}',
        '{"type": "%s",\r\n  "id": "evt_1"}\r\n',
        '{"type":"%s","id":"evt_1"}\n',
        '\ufeff{"id": "evt_1", "type": "%s"}',
    ],
    ids=["raw", "escaped", "crlf", "trailing-newline", "bom"],
)
def test_untouched_bytes_are_verified(shop: Shop, body: str) -> None:
    assert answer(post(shop, (body % TYPE).encode())) == RECEIVED


@pytest.mark.parametrize(
    ("body", "expected"),
    [(event_body(), (200, None)), (gzip.compress(event_body()), (400, "invalid_payload"))],
    ids=["named-only", "compressed"],
)
def test_content_encoding_is_logged(
    shop: Shop,
    body: bytes,
    expected: tuple[int, str | None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = post(shop, body, headers={"Content-Encoding": "gzip"})

    assert response.json is not None
    assert (response.status_code, response.json.get("error")) == expected
    assert "Content-Encoding" in caplog.text


# -------------------------------------------------------------------- where it answers


@pytest.fixture
def bare(sqlite_url: str) -> c.Iterator[Bare]:
    """An app that has not registered the blueprint yet."""
    db = SQLAlchemy()
    app = Flask(__name__)
    app.config.update(
        SQLALCHEMY_DATABASE_URI=sqlite_url, SANGHO_WEBHOOK_SECRET=SECRET, SECRET_KEY="x"
    )
    db.init_app(app)

    def webhooks(**options: t.Any) -> SanghoWebhooks:
        webhooks = SanghoWebhooks(db, **options)
        webhooks.on(TYPE)(lambda event: None)

        with app.app_context():
            db.create_all()

        return webhooks

    yield Bare(app, webhooks)

    with app.app_context():
        db.engine.dispose()


class Bare(t.NamedTuple):
    app: Flask
    webhooks: c.Callable[..., SanghoWebhooks]


def deliver(app: Flask, path: str) -> tuple[int, t.Any]:
    body = event_body()
    headers = {"Sangho-Signature": sign(body, SECRET)}
    return answer(app.test_client().post(path, data=body, headers=headers))


def mount(app: Flask, blueprint: Blueprint, how: str) -> str:
    """Register the blueprint in one of Flask's ways.

    :return: the path of the endpoint.
    """
    if how == "plain":
        app.register_blueprint(blueprint)
        return "/webhook"

    if how == "prefixed":
        app.register_blueprint(blueprint, url_prefix="/sangho")
        return "/sangho/webhook"

    if how == "renamed":
        app.register_blueprint(blueprint, name="payments")
        return "/webhook"

    parent = Blueprint("api", __name__, url_prefix="/api")
    parent.register_blueprint(blueprint)
    app.register_blueprint(parent)
    return "/api/webhook"


MOUNTS = ["plain", "prefixed", "renamed", "nested"]


@pytest.mark.parametrize("how", MOUNTS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_csrf_protection(bare: Bare, order: str, how: str) -> None:
    bare.app.add_url_rule("/form", "form", lambda: "sent", methods=["POST"])

    if order == "before":
        CSRFProtect(bare.app)

    path = mount(bare.app, bare.webhooks().blueprint, how)

    if order == "after":
        CSRFProtect(bare.app)

    assert deliver(bare.app, path) == RECEIVED
    assert bare.app.test_client().post("/form").status_code == 400


@pytest.mark.parametrize("how", MOUNTS)
def test_before_request_runs_after_the_body_is_read(bare: Bare, how: str) -> None:
    bare.app.before_request(touch_everything)
    path = mount(bare.app, bare.webhooks().blueprint, how)
    body = event_body()

    response = bare.app.test_client().post(
        path, data=body, content_type=FORM, headers={"Sangho-Signature": sign(body, SECRET)}
    )

    assert answer(response) == RECEIVED


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("path", "url_prefix", "url"),
    [
        ("/webhook", None, "/webhook"),
        ("/hooks/", None, "/hooks"),
        ("/webhook", "/sangho", "/sangho/webhook"),
        ("/hooks/", "/sangho/", "/sangho/hooks"),
        ("/", "/sangho", "/sangho"),
    ],
)
def test_both_forms_of_the_path(
    bare: Bare, path: str, url_prefix: str | None, url: str, slash: str
) -> None:
    bare.app.register_blueprint(bare.webhooks(path=path).blueprint, url_prefix=url_prefix)

    assert deliver(bare.app, url + slash) == RECEIVED


def test_options(shop: Shop) -> None:
    response = shop.app.test_client().options("/webhook")

    assert (response.status_code, response.data) == (200, b"")


# -------------------------------------------------------------------------- headers


@pytest.mark.parametrize("name", ["Sangho-Signature", "Sangho-Event-ID"])
def test_bytes_outside_ascii_in_a_header(shop: Shop, name: str) -> None:
    valid = sign(event_body(), SECRET)
    value = {"Sangho-Signature": f"{valid[:-1]}\xe9", "Sangho-Event-ID": "evt_\xe9"}[name]

    response = post(shop, event_body(), headers={name: value})

    assert response.status_code in (400, 401)
    assert shop.recorded() == []


def test_bytes_outside_ascii_in_an_id_that_is_in_the_header_only(shop: Shop) -> None:
    body = b'{"type": "%b"}' % TYPE.encode()

    response = post(shop, body, headers={"Sangho-Event-ID": "evt_\xe9"})

    assert refusal(response) == (400, "invalid_payload")


def test_event_id_header_serves_where_the_body_has_none(shop: Shop) -> None:
    body = b'{"type": "%b"}' % TYPE.encode()

    assert answer(post(shop, body, headers={"Sangho-Event-ID": "evt_7"})) == RECEIVED
    assert shop.recorded() == ["evt_7"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 200), ({"Sangho-Event-ID": "evt_1"}, 200), ({"Sangho-Event-ID": "evt_2"}, 400)],
    ids=["none", "same", "other"],
)
def test_replay_runs_nothing(shop: Shop, headers: dict[str, str], status: int) -> None:
    assert answer(shop.deliver()) == RECEIVED

    assert post(shop, event_body(), headers=headers).status_code == status
    assert (shop.grants(), shop.recorded()) == (["evt_1"], ["evt_1"])


@pytest.mark.parametrize(("secret", "position"), [("whsec_new", 0), ("whsec_old", 1)])
def test_rotated_secret(
    sqlite_url: str, secret: str, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_sangho_webhooks")

    with Shop(sqlite_url, config={"SANGHO_WEBHOOK_SECRET": ["whsec_new", "whsec_old"]}) as shop:
        assert shop.deliver(secret=secret).status_code == 200

    assert ("older secret, number 2 of 2" in caplog.text) == (position > 0)


# ----------------------------------------------------------------- what is kept quiet


MARKER = "marker-of-the-body"


@pytest.mark.parametrize(
    "how", ["processed", "failed", "malformed", "mismatch", "invalid", "encoded", "too-large"]
)
def test_no_secret_body_or_signature_is_shown(
    shop: Shop, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = event_body(note=MARKER, padding="x" * (LIMIT if how == "too-large" else 0))
    headers = {}

    if how == "failed":
        shop.webhooks.on(TYPE)(lambda event: 1 / 0)
    elif how == "malformed":
        headers["Sangho-Signature"] = MARKER
    elif how == "mismatch":
        headers["Sangho-Signature"] = sign(body, MARKER)
    elif how == "invalid":
        body = b'{"id": "%b"' % MARKER.encode()
    elif how == "encoded":
        headers |= {"Content-Encoding": MARKER, "Sangho-Event-ID": MARKER}

    response = post(shop, body, headers=headers)

    shown = response.text + str(response.headers) + caplog.text
    assert caplog.records
    assert MARKER not in shown
    assert SECRET not in shown
    assert sign(body, SECRET).rpartition("v1=")[2] not in shown
