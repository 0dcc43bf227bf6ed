"""What helps users test their handlers: it delivers as Sangho does, and sends what it signed."""

from __future__ import annotations

import collections.abc as c
import concurrent.futures
import datetime as dt
import pathlib
import subprocess
import sys
import threading
import time
import typing as t

import pytest
from flask import Blueprint, Flask, redirect, request
from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]
from werkzeug import Response

from flask_sangho_webhooks import ConfigError, Event, PayloadError, SanghoWebhooks
from flask_sangho_webhooks.event_types import KNOWN_TYPES
from flask_sangho_webhooks.samples import SAMPLES
from flask_sangho_webhooks.testing import build_event, SanghoTestClient

from .support import SECRET, Shop, TYPE

pytest_plugins = ["pytester"]

RECEIVED = {"received": True}
DUPLICATE = {"received": True, "duplicate": True}


@pytest.fixture
def shop(sqlite_shop: Shop) -> Shop:
    """A shop that grants once an event, and remembers its last requests."""
    sqlite_shop.webhooks.on(TYPE)(lambda event: sqlite_shop.grant(event.id))
    return sqlite_shop


@pytest.fixture
def client(shop: Shop) -> SanghoTestClient:
    return SanghoTestClient(shop.app)


@pytest.fixture
def requests(shop: Shop) -> list[tuple[bytes, dict[str, str]]]:
    """The body and the headers of each request, as they come in."""
    seen: list[tuple[bytes, dict[str, str]]] = []

    @shop.app.before_request
    def remember() -> None:
        seen.append((request.get_data(), dict(request.headers)))

    return seen


def app_with(blueprint: Blueprint, **config: t.Any) -> Flask:
    app = Flask(__name__)
    app.config.update({"SANGHO_WEBHOOK_SECRET": SECRET, **config})
    app.register_blueprint(blueprint)
    return app


# ------------------------------------------------------------------ delivering


@pytest.mark.parametrize(
    "thing",
    [
        {"z": 1, "a": "é 🦁 \u2028 </script>", "n": 1e100, "nested": [{"": None}]},
        [],
        "text",
        False,
    ],
    ids=["object", "list", "text", "false"],
)
def test_what_is_signed_is_what_is_sent(
    client: SanghoTestClient, requests: list[tuple[bytes, dict[str, str]]], thing: t.Any
) -> None:
    assert client.deliver(TYPE, thing).json == RECEIVED
    ((body, headers),) = requests
    event = Webhooks.construct_event(body, headers["Sangho-Signature"], SECRET)

    assert event["data"]["object"] == thing
    assert headers["Sangho-Event-Id"] == event["id"]
    assert client.event is not None
    assert body == client.event.body


def test_delivery_looks_like_one_of_sanghos(
    client: SanghoTestClient, requests: list[tuple[bytes, dict[str, str]]], shop: Shop
) -> None:
    before = int(time.time())
    client.deliver(TYPE, {"id": "pi_1"})
    ((body, headers),) = requests
    event = Event.from_body(body)

    assert set(event.payload) == {
        *("id", "object", "api_version", "type", "created", "livemode", "data")
    }
    assert event.created is not None
    assert before <= event.created.timestamp() <= time.time()
    assert headers["Content-Type"] == "application/json"
    assert "Cookie" not in headers


def test_each_delivery_is_a_new_event(client: SanghoTestClient, shop: Shop) -> None:
    assert [client.deliver(TYPE).json for _ in range(2)] == [RECEIVED, RECEIVED]
    assert len(shop.recorded()) == 2


def test_options(client: SanghoTestClient, shop: Shop) -> None:
    events: list[Event] = []
    shop.webhooks.on("refund.created")(events.append)
    client.deliver("refund.created", event_id="evt_1", created=7, livemode=True, extra=[1])

    client.deliver("refund.created", data={"previous": 1})

    event, other = events
    assert other.data == {"previous": 1}
    assert (event.id, event.livemode, event.payload["extra"]) == ("evt_1", True, [1])
    assert event.created == dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        ({"timestamp": int(time.time()) - 600}, 400, "expired"),
        ({"secret": "whsec_another"}, 401, "mismatch"),
        ({"headers": {"Sangho-Signature": "nonsense"}}, 400, "malformed"),
        ({"headers": {"sangho-signature": "nonsense"}}, 400, "malformed"),
        ({"headers": {"Sangho-Event-ID": "evt_other"}}, 400, "invalid_payload"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["deliver", "redeliver"])
def test_what_must_be_refused(
    client: SanghoTestClient, options: dict[str, t.Any], status: int, error: str, again: bool
) -> None:
    if again:
        client.deliver(TYPE)
        answer = client.redeliver(**options)
    else:
        answer = client.deliver(TYPE, **options)

    assert answer.status_code == status
    assert answer.json is not None
    assert answer.json["error"] == error


@pytest.mark.parametrize("event_type", KNOWN_TYPES)
def test_default_object_is_the_sample(event_type: str) -> None:
    assert build_event(event_type).object == SAMPLES[event_type]


def test_event_without_a_request(shop: Shop) -> None:
    event = build_event(TYPE, {"amount": 5000}, id="evt_1")

    with shop.app.app_context():
        shop.webhooks.process(event)

    assert event.object == {"amount": 5000}
    assert SanghoTestClient(shop.app).send(event).json == DUPLICATE


def test_what_is_no_event_is_refused_before_it_is_sent(client: SanghoTestClient) -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'invoice\.paid'"):
        client.deliver("invoice.payd")

    with pytest.raises(ValueError, match="JSON compliant"):
        client.deliver(TYPE, {"amount": float("nan")})

    with pytest.raises(PayloadError, match="id must be 1 to 50"):
        client.deliver(TYPE, event_id="evt 1")

    assert client.event is None


def test_headers(client: SanghoTestClient, requests: list[tuple[bytes, dict[str, str]]]) -> None:
    given = {"Content-Type": "text/plain", "X-Forwarded-For": "192.0.2.1"}

    assert client.deliver(TYPE, headers=given).json == RECEIVED
    assert given.items() <= requests[0][1].items()


def test_app_that_redirects_to_https(shop: Shop, client: SanghoTestClient) -> None:
    @shop.app.before_request
    def secure() -> Response | None:
        return None if request.is_secure else redirect(request.url.replace("http:", "https:"))

    assert client.deliver(TYPE).json == RECEIVED


def test_objects_that_the_test_has_loaded_are_fresh_afterwards(shop: Shop) -> None:
    with shop.app.app_context():
        grant = shop.Grant(note="open")
        shop.db.session.add(grant)
        shop.db.session.commit()
        grant_id = grant.id

        @shop.webhooks.on("invoice.paid")
        def pay(event: Event) -> None:
            loaded = shop.db.session.get(shop.Grant, grant_id)
            assert loaded is not None
            loaded.note = "paid"

        assert grant.note == "open"
        SanghoTestClient(shop.app).deliver("invoice.paid")
        assert grant.note == "paid"


# ---------------------------------------------------------------- redelivering


def test_redelivery_is_the_same_with_a_fresh_signature(
    client: SanghoTestClient, requests: list[tuple[bytes, dict[str, str]]]
) -> None:
    hour_ago = int(time.time()) - 3600

    assert client.deliver(TYPE, timestamp=hour_ago).status_code == 400
    assert client.redeliver().json == RECEIVED
    assert client.redeliver().json == DUPLICATE

    bodies, headers = zip(*requests, strict=True)
    assert len(set(bodies)) == 1
    assert headers[0]["Sangho-Signature"] != headers[1]["Sangho-Signature"]


def test_redelivery_needs_a_delivery(client: SanghoTestClient) -> None:
    with pytest.raises(RuntimeError, match=r"Call deliver\(\) first"):
        client.redeliver()


@pytest.mark.parametrize("testing", [False, True])
def test_redelivery_after_a_failure(client: SanghoTestClient, shop: Shop, testing: bool) -> None:
    tries: list[Event] = []
    shop.app.testing = testing

    @shop.webhooks.on(TYPE)
    def fail_once(event: Event) -> None:
        tries.append(event)

        if len(tries) == 1:
            raise ZeroDivisionError

    if testing:
        with pytest.raises(ZeroDivisionError):
            client.deliver(TYPE)
    else:
        assert client.deliver(TYPE).status_code == 500

    assert shop.grants() == []
    assert client.redeliver().json == RECEIVED
    assert len(tries) == 2
    assert len(shop.grants()) == 1


# ------------------------------------------------------------------ concurrency


@pytest.fixture(params=["file", "memory"])
def concurrent_shop(request: pytest.FixtureRequest) -> c.Iterator[Shop]:
    """A shop that no request gets through before eight are there."""
    url = "sqlite://" if request.param == "memory" else request.getfixturevalue("sqlite_url")
    together = threading.Barrier(8)

    with Shop(url) as shop:

        @shop.app.before_request
        def wait() -> None:
            together.wait(20)

        yield shop


def test_concurrent_deliveries_are_concurrent(concurrent_shop: Shop) -> None:
    shop = concurrent_shop
    runs: list[str] = []

    @shop.webhooks.on(TYPE)
    def work(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()
        time.sleep(0.05)
        runs.append(event.id)

    client = SanghoTestClient(shop.app)
    answers = client.deliver_concurrently(8, TYPE, event_id="evt_1")

    assert len({id(answer) for answer in answers}) == 8
    assert [answer.json for answer in answers].count(RECEIVED) == 1
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert runs == ["evt_1"]


def test_concurrent_deliveries_of_a_handler_that_fails_once(concurrent_shop: Shop) -> None:
    shop = concurrent_shop
    runs: list[str] = []

    @shop.webhooks.on(TYPE)
    def work(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()
        runs.append(event.id)

        if len(runs) == 1:
            time.sleep(0.05)
            raise ZeroDivisionError

    answers = SanghoTestClient(shop.app).deliver_concurrently(8, TYPE, event_id="evt_1")

    assert [answer.json for answer in answers].count(RECEIVED) == 1
    assert [answer.status_code for answer in answers].count(500) == 1
    assert {answer.status_code for answer in answers} <= {200, 500, 503}
    assert runs == ["evt_1"] * 2


def test_no_concurrent_delivery_starts_before_all_are_ready(
    client: SanghoTestClient, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [threading.active_count()]
    submit = concurrent.futures.ThreadPoolExecutor.submit

    def submit_slowly(*arguments: t.Any) -> t.Any:
        time.sleep(0.01)
        return submit(*arguments)

    @shop.app.before_request
    def count() -> None:
        threads.append(threading.active_count())

    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", submit_slowly)
    client.deliver_concurrently(8, TYPE)

    assert threads[1] - threads[0] == 8


# ------------------------------------------------------------ secret and route


def test_secret_is_the_newest_of_the_app(sqlite_url: str) -> None:
    config = {"SANGHO_WEBHOOK_SECRET": ["whsec_new", "whsec_old"]}

    with Shop(sqlite_url, config=config) as shop:
        client = SanghoTestClient(shop.app)
        client.deliver("webhook.test")
        shop.app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_new"
        shop.webhooks.init_app(shop.app)

        assert client.redeliver().status_code == 200


def test_second_endpoint(shop: Shop, sqlite_url: str) -> None:
    shop.app.config["SANGHO_CONNECT_SECRET"] = "whsec_connect"
    connect = SanghoWebhooks(
        guard=t.cast(t.Any, object()),
        name="connect",
        path="/connect-webhook",
        config_prefix="SANGHO_CONNECT_",
    )
    shop.app.register_blueprint(connect.blueprint)
    client = SanghoTestClient(shop.app, name="connect")

    assert client.path == "/connect-webhook"
    assert client.deliver("account.updated").json == {"received": True, "handled": False}
    assert SanghoTestClient(shop.app).deliver(TYPE).json == RECEIVED


def test_only_endpoint_needs_no_name() -> None:
    webhooks = SanghoWebhooks(guard=t.cast(t.Any, object()), name="pay", path="/pay")

    assert SanghoTestClient(app_with(webhooks.blueprint)).path == "/pay"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"APPLICATION_ROOT": "/root"},
        {"SERVER_NAME": "shop.example:8000"},
        {"PREFERRED_URL_SCHEME": "https"},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"url_prefix": "/api"}, {"name": "other"}], ids=str)
@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
def test_route_is_found(config: dict[str, t.Any], options: dict[str, t.Any], nested: bool) -> None:
    webhooks = SanghoWebhooks(guard=t.cast(t.Any, object()))
    app = Flask(__name__)
    app.config.update({"SANGHO_WEBHOOK_SECRET": SECRET, **config})

    if nested:
        webhooks.init_app(app)
        parent = Blueprint("parent", __name__, url_prefix="/parent")
        parent.register_blueprint(webhooks.blueprint, **options)
        app.register_blueprint(parent)
    else:
        app.register_blueprint(webhooks.blueprint, **options)

    assert SanghoTestClient(app).deliver(TYPE).json == {"received": True, "handled": False}


def test_route_of_a_subdomain_is_found() -> None:
    app = Flask(__name__, subdomain_matching=True)
    app.config.update({"SANGHO_WEBHOOK_SECRET": SECRET, "SERVER_NAME": "shop.example:8000"})
    app.register_blueprint(
        SanghoWebhooks(guard=t.cast(t.Any, object())).blueprint, subdomain="hooks"
    )

    assert SanghoTestClient(app).deliver(TYPE).json == {"received": True, "handled": False}


def test_route_with_variable_parts_has_to_be_given() -> None:
    webhooks = SanghoWebhooks(guard=t.cast(t.Any, object()), path="/<tenant>/webhook")
    app = app_with(webhooks.blueprint)
    app.url_value_preprocessor(lambda endpoint, values: t.cast(t.Any, values).clear())

    with pytest.raises(ConfigError, match=r"SanghoTestClient\(app, path=…\)"):
        SanghoTestClient(app)

    answer = SanghoTestClient(app, path="/ada/webhook").deliver(TYPE)
    assert answer.json == {"received": True, "handled": False}


def test_app_without_the_extension_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"app\.register_blueprint\(webhooks\.blueprint\)"):
        SanghoTestClient(Flask(__name__))


def test_app_without_a_route_is_explained() -> None:
    app = Flask(__name__)
    app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
    SanghoWebhooks(guard=t.cast(t.Any, object())).init_app(app)

    with pytest.raises(ConfigError, match=r"no route.+app\.register_blueprint"):
        SanghoTestClient(app)


def test_unknown_name_is_explained(shop: Shop) -> None:
    with pytest.raises(ConfigError, match=r"'conect'.+: sangho_webhooks\.$"):
        SanghoTestClient(shop.app, name="conect")


# --------------------------------------------------------------------- imports


def test_what_the_package_does_not_import(tmp_path: pathlib.Path) -> None:
    """Neither the package its help for tests, nor that a test framework."""
    check = """
import sys
import flask_sangho_webhooks as package
print({f"{package.__name__}.{name}" for name in ("testing", "samples")} & set(sys.modules))
import flask_sangho_webhooks.testing
print({"pytest", "_pytest", "unittest"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.stdout == "set()\nset()\n", done.stderr


# --------------------------------------------------------------- pytest plugin

APP = """
import pytest


@pytest.fixture
def app():
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy
    from flask_sangho_webhooks import SanghoWebhooks

    db = SQLAlchemy()
    webhooks = SanghoWebhooks(db)
    paid = []
    webhooks.on("payment_intent.succeeded")(lambda event: paid.append(event.object["amount"]))
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_test"
    app.paid = paid
    db.init_app(app)
    app.register_blueprint(webhooks.blueprint)

    with app.app_context():
        db.create_all()
        yield app
        db.engine.dispose()
"""

USER_TESTS = """
import sys


def test_plugin_imports_nothing():
    assert {"flask", "sqlalchemy", "flask_sangho_webhooks"}.isdisjoint(sys.modules)


def test_payment(app, sangho):
    answer = sangho.deliver("payment_intent.succeeded", {"amount": 5000})

    assert answer.json == {"received": True}
    assert sangho.redeliver().json == {"received": True, "duplicate": True}
    assert app.paid == [5000]
"""


def test_plugin_delivers_to_the_app_of_the_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=APP + USER_TESTS, test_nothing="def test(sangho): pass")

    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'app' not found*"])
