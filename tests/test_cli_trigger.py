"""``flask sangho trigger``: what it delivers, what it prints, and what it says to fix."""

from __future__ import annotations

import collections.abc as c
import contextlib
import json
import pathlib
import socket
import threading
import typing as t

import pytest
from click.testing import Result
from flask import Flask, redirect, request
from werkzeug import Response
from werkzeug.serving import make_server

import flask_sangho_webhooks.cli._delivery
from example_app import create_app
from flask_sangho_webhooks import Discard, Event, SanghoWebhooks
from flask_sangho_webhooks.cli.trigger import trigger
from flask_sangho_webhooks.event_types import KNOWN_TYPES
from flask_sangho_webhooks.samples import SAMPLES

from .support import SECRET, Shop, TYPE

HANDLED = '200 {"received":true}'
DUPLICATE = '200 {"duplicate":true,"received":true}'


def run(app: Flask, *arguments: str, stdin: str | None = None) -> Result:
    return app.test_cli_runner().invoke(args=["sangho", "trigger", *arguments], input=stdin)


def answers(result: Result) -> list[str]:
    """The lines after the one that says what goes where."""
    return result.stdout.splitlines()[1:]


@contextlib.contextmanager
def served(app: t.Any) -> c.Iterator[str]:
    """The app behind a real HTTP server."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def events(sqlite_shop: Shop) -> list[Event]:
    """What the shop's handler was given."""
    seen: list[Event] = []
    sqlite_shop.webhooks.on("*")(seen.append)
    return seen


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> c.Iterator[Flask]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", SECRET)
        patch.delenv("FLASK_SQLALCHEMY_DATABASE_URI", raising=False)
        app = create_app(str(tmp_path_factory.mktemp("instance")))

    yield app

    with app.app_context():
        app.extensions["sqlalchemy"].engine.dispose()


@pytest.fixture(scope="module")
def example_url(example: Flask) -> c.Iterator[str]:
    with served(example) as url:
        yield url


# ------------------------------------------------------------ what is delivered


@pytest.mark.parametrize("event_type", KNOWN_TYPES)
def test_every_known_type_is_fine_for_the_example(
    example: Flask, example_url: str, event_type: str
) -> None:
    for result in (run(example, event_type), run(example, event_type, "--url", example_url)):
        assert result.exit_code == 0, result.output
        assert answers(result)[0].startswith("200 ")


def test_event_of_the_sample(sqlite_shop: Shop, events: list[Event]) -> None:
    result = run(sqlite_shop.app, TYPE)
    (event,) = events

    assert result.stdout == f"{TYPE} {event.id} to /webhook\n{HANDLED}\n"
    assert result.stderr == ""
    assert event.object == SAMPLES[TYPE]


@pytest.mark.parametrize("source", ["option", "file", "stdin"])
def test_data_takes_the_place_of_members(
    sqlite_shop: Shop, events: list[Event], tmp_path: pathlib.Path, source: str
) -> None:
    data = '{"amount": 7, "metadata": {"é": 1}}'
    (tmp_path / "data.json").write_text(data, encoding="utf-8")
    given = {"option": data, "file": f"@{tmp_path / 'data.json'}", "stdin": "@-"}

    assert run(sqlite_shop.app, TYPE, "--data", given[source], stdin=data).exit_code == 0
    assert events[0].object == {**SAMPLES[TYPE], "amount": 7, "metadata": {"é": 1}}


def test_unknown_type_needs_the_object(sqlite_shop: Shop, events: list[Event]) -> None:
    refused = run(sqlite_shop.app, "invoice.payd")

    assert refused.exit_code == 2
    assert "Did you mean 'invoice.paid'? If it does, give the event's object" in refused.stderr
    assert events == []
    assert run(sqlite_shop.app, "invoice.payd", "--data", "[1]").exit_code == 0
    assert (events[0].type, events[0].object) == ("invoice.payd", [1])


def test_times(sqlite_shop: Shop, events: list[Event]) -> None:
    result = run(sqlite_shop.app, TYPE, "--times", "3")

    assert answers(result) == [HANDLED, DUPLICATE, DUPLICATE]
    assert len(events) == 1


def test_event_id(sqlite_shop: Shop, events: list[Event]) -> None:
    results = [run(sqlite_shop.app, TYPE, "--event-id", "evt_1") for _ in range(2)]

    assert [answers(result) for result in results] == [[HANDLED], [DUPLICATE]]
    assert events[0].id == "evt_1"


def test_each_delivery_has_an_app_context_of_its_own(sqlite_shop: Shop) -> None:
    ended: list[object] = []
    sqlite_shop.app.teardown_appcontext(ended.append)
    run(sqlite_shop.app, "webhook.test", "--times", "2")

    assert len(ended) == 3  # one is the command's


@pytest.mark.parametrize("remote", [False, True], ids=["app", "server"])
def test_second_endpoint(sqlite_shop: Shop, events: list[Event], remote: bool) -> None:
    app = sqlite_shop.app
    app.config["SANGHO_CONNECT_SECRET"] = ["whsec_connect", "whsec_old"]
    connect = SanghoWebhooks(
        guard=t.cast(t.Any, object()), name="connect", path="/pay", config_prefix="SANGHO_CONNECT_"
    )
    app.register_blueprint(connect.blueprint)

    with served(app) as url:
        where = ["--url", url] if remote else []
        result = run(app, "account.updated", "--name", "connect", *where)

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith(f" to {url if remote else ''}/pay")
    assert result.stderr.startswith("No handler of 'connect' is registered for this type.")
    assert events == []


# ------------------------------------------------------------------- the secret


def test_server_with_another_secret(sqlite_shop: Shop, sqlite_url: str) -> None:
    theirs = {"SANGHO_WEBHOOK_SECRET": "whsec_theirs"}

    with Shop(sqlite_url, config=theirs) as other, served(other.app) as url:
        wrong = run(sqlite_shop.app, TYPE, "--url", url)
        wrongly_given = run(sqlite_shop.app, TYPE, "--url", url, "--secret", "whsec_wrong")
        right = run(sqlite_shop.app, TYPE, "--url", url, "--secret", stdin="whsec_theirs\n")
        given = run(sqlite_shop.app, TYPE, "--url", url, "--secret", "whsec_theirs")
        sqlite_shop.app.config.update(theirs)
        sqlite_shop.webhooks.init_app(sqlite_shop.app)
        fixed = run(sqlite_shop.app, TYPE, "--url", url)

    assert wrong.exit_code == 1
    assert answers(wrong)[0].startswith('401 {"error":"mismatch"')
    assert f"The server at {url}/webhook has another secret" in wrong.stderr
    assert "add --secret" in wrong.stderr
    assert "set SANGHO_WEBHOOK_SECRET (in the environment, FLASK_SANGHO_" in wrong.stderr
    assert "has another secret than the one that --secret gives" in wrongly_given.stderr
    assert "add --secret" not in wrongly_given.stderr
    assert (right.exit_code, given.exit_code, fixed.exit_code) == (0, 0, 0)
    assert not any(
        secret in result.output
        for secret in (SECRET, "whsec_theirs")
        for result in (wrong, right, given, fixed)
    )


def test_app_with_another_secret(sqlite_shop: Shop) -> None:
    result = run(sqlite_shop.app, TYPE, "--secret", "whsec_other")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "The app has another secret than --secret."


# ---------------------------------------------------------------- other answers


def test_handler_that_fails(sqlite_shop: Shop) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        raise ZeroDivisionError

    result = run(sqlite_shop.app, TYPE, "--times", "2")

    assert result.exit_code == 1
    assert [line.split()[0] for line in answers(result)] == ["500", "500"]
    assert result.stderr.count("the log says why") == 1


def test_one_failure_of_several_counts(sqlite_shop: Shop) -> None:
    tries: list[Event] = []

    @sqlite_shop.webhooks.on(TYPE)
    def fail_once(event: Event) -> None:
        tries.append(event)

        if len(tries) == 1:
            raise ZeroDivisionError

    result = run(sqlite_shop.app, TYPE, "--times", "2")

    assert result.exit_code == 1
    assert answers(result)[1] == HANDLED


class ChangedHeader:
    """A proxy that does not know the header."""

    def __init__(self, app: t.Any) -> None:
        self.app = app

    def __call__(self, environ: dict[str, t.Any], start_response: t.Any) -> t.Any:
        environ.pop("HTTP_SANGHO_SIGNATURE", None)
        return self.app(environ, start_response)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/elsewhere", 404, "No endpoint is there. Is http://127.0.0.1:"),
        ("/get", 405, "No endpoint is there. Is http://127.0.0.1:"),
        ("/move", 302, "redirect to https://shop.example/webhook"),
        ("/csrf", 400, "Exempt the view 'sangho_webhooks.receive'"),
        ("/login", 401, "wants a login"),
        ("/forbidden", 403, "wants a login"),
        ("/broken", 500, "the log says why"),
        ("/ok", 200, "Something else has answered in the endpoint's place"),
        ("/json", 200, "Something else has answered in the endpoint's place"),
        ("/bad", 400, ""),
    ],
)
def test_what_others_answer_is_explained(
    path: str, status: int, text: str, sqlite_shop: Shop
) -> None:
    app = Flask(__name__)

    @app.post("/<what>")
    def answer(what: str) -> Response | tuple[str, int] | dict[str, bool]:
        if what == "json":
            return {"ok": True}

        if what == "move":
            return redirect("https://shop.example/webhook")

        if what == "csrf":
            return "<p>The CSRF token is missing.</p>", 400

        statuses = {
            "get": 405,
            "login": 401,
            "forbidden": 403,
            "broken": 500,
            "bad": 400,
            "ok": 200,
        }
        return "", statuses.get(what, 404)

    with served(app) as url:
        result = run(sqlite_shop.app, TYPE, "--url", url + path)

    assert result.exit_code == 1
    assert answers(result)[0].split()[0] == str(status)
    assert text in result.stderr
    assert bool(text) == bool(result.stderr)


def test_view_in_the_endpoints_place_is_a_failure(sqlite_url: str) -> None:
    def take(app: Flask) -> None:
        app.post("/webhook")(lambda: "ok")

    with Shop(sqlite_url, beside=take) as shop:
        result = run(shop.app, TYPE)

    assert (result.exit_code, answers(result)) == (1, ["200 ok"])
    assert "and forgets it" in result.stderr


def log_in() -> Response:
    return redirect("/login")


def log_in_at_once() -> Response:
    return redirect("https://localhost/login")


@pytest.mark.parametrize("hook", [log_in, log_in_at_once])
@pytest.mark.parametrize("remote", [False, True], ids=["app", "server"])
def test_redirect_to_a_page_of_the_app_is_explained(
    sqlite_shop: Shop, hook: c.Callable[[], Response], remote: bool
) -> None:
    sqlite_shop.app.get("/login")(lambda: "")
    sqlite_shop.app.before_request(hook)

    with served(sqlite_shop.app) as url:
        result = run(sqlite_shop.app, TYPE, *(["--url", url] if remote else []))

    assert result.exit_code == 1
    assert "Let the endpoint 'sangho_webhooks.receive' through" in result.stderr
    assert "final address" not in result.stderr


def test_redirect_to_another_path_is_no_page_of_the_app(sqlite_shop: Shop) -> None:
    sqlite_shop.app.before_request(lambda: redirect("/elsewhere/webhook"))

    assert "final address" in run(sqlite_shop.app, TYPE).stderr


def test_answer_of_a_before_request_function_is_explained(sqlite_shop: Shop) -> None:
    sqlite_shop.app.before_request(lambda: "maintenance")
    result = run(sqlite_shop.app, TYPE)

    assert result.exit_code == 1
    assert "the log says why" in result.stderr.splitlines()[-1]


def test_missing_table_is_said_at_the_end(sqlite_shop: Shop, events: list[Event]) -> None:
    with sqlite_shop.app.app_context():
        sqlite_shop.db.drop_all()

    result = run(sqlite_shop.app, TYPE, "--times", "2")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        "The table 'processed_webhook_events' does not exist. Create it with 'flask sangho upgrade'"
    )


def test_what_a_handler_raises_is_left_to_the_log(sqlite_shop: Shop) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        raise RuntimeError("the handler's own")

    result = run(sqlite_shop.app, TYPE)

    assert "the log says why" in result.stderr.splitlines()[-1]


def test_discarded_event_is_explained(sqlite_shop: Shop) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        raise Discard("no such order")

    result = run(sqlite_shop.app, TYPE)

    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1] == "A handler has discarded it; the log has the reason."


def test_type_without_a_handler_is_explained(sqlite_shop: Shop) -> None:
    result = run(sqlite_shop.app, TYPE)

    assert (result.exit_code, result.stderr) == (0, "No handler is registered for this type.\n")


@pytest.mark.parametrize("pattern", ["account.*", "account.updated"])
def test_handler_of_another_endpoint_is_named(sqlite_shop: Shop, pattern: str) -> None:
    sqlite_shop.app.config["SANGHO_CONNECT_SECRET"] = "whsec_connect"
    connect = SanghoWebhooks(
        guard=t.cast(t.Any, object()), name="connect", path="/pay", config_prefix="SANGHO_CONNECT_"
    )
    connect.on(pattern)(lambda event: None)
    sqlite_shop.app.register_blueprint(connect.blueprint)
    result = run(sqlite_shop.app, "account.updated")

    assert result.exit_code == 0
    assert result.stderr == (
        "No handler of 'sangho_webhooks' is registered for this type. 'connect' has one: add --name"
        " connect.\n"
    )


def test_signature_that_does_not_arrive_is_explained(sqlite_shop: Shop) -> None:
    with served(ChangedHeader(sqlite_shop.app)) as url:
        result = run(sqlite_shop.app, TYPE, "--url", url)

    assert result.exit_code == 1
    assert "Something on the way removes or changes Sangho-Signature" in result.stderr


def test_clocks_that_differ_are_explained(sqlite_shop: Shop) -> None:
    sqlite_shop.app.config["SANGHO_WEBHOOK_TOLERANCE"] = 1e-9
    sqlite_shop.webhooks.init_app(sqlite_shop.app)

    with served(sqlite_shop.app) as url:
        result = run(sqlite_shop.app, TYPE, "--url", url)

    assert "clocks of the two machines differ by more than SANGHO_WEBHOOK_TOL" in result.stderr


def test_long_and_unprintable_answers_are_shortened(sqlite_shop: Shop) -> None:
    app = Flask(__name__)
    app.post("/webhook")(lambda: f"a\x1b[31m\n\n b{'x' * 1000}")

    with served(app) as url:
        (line,) = answers(run(sqlite_shop.app, TYPE, "--url", url))

    assert line.startswith("200 a[31m b")
    assert line.endswith("x…")
    assert len(line) < 600


# -------------------------------------------------------------------- no answer


def test_server_that_is_not_there_is_explained(sqlite_shop: Shop) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = run(sqlite_shop.app, TYPE, "--url", url)

    assert result.exit_code == 1
    assert f"No server listens at {url}/webhook. Start it" in result.stderr


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_server_that_is_silent_is_explained(
    sqlite_shop: Shop, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flask_sangho_webhooks.cli._delivery, "TIMEOUT", 0.1)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/webhook"
        result = run(sqlite_shop.app, TYPE, "--url", url)

    assert result.exit_code == 1
    assert f"{url} has not answered for 0.1 seconds" in result.stderr


@pytest.mark.parametrize(
    ("scheme", "reply", "text"),
    [
        ("https", b"HTTP/1.0 400 Bad Request\r\n\r\n", "does not speak TLS"),
        ("http", b"\x15\x03\x03\x00\x02\x02\x16", "There is no answer from http"),
        ("http", b"", "There is no answer from http"),
    ],
)
def test_server_that_speaks_something_else_is_explained(
    sqlite_shop: Shop, scheme: str, reply: bytes, text: str
) -> None:
    def answer() -> None:
        client, _ = server.accept()

        with client:
            client.recv(10_000)
            client.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/webhook"
        result = run(sqlite_shop.app, TYPE, "--url", url)
        thread.join()

    assert result.exit_code == 1
    assert text in result.stderr


# -------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--url", "localhost:5000"], "Give a whole URL"),
        (["--url", "ftp://localhost/webhook"], "Give a whole URL"),
        (["--url", "http:///webhook"], "Give a whole URL"),
        (["--url", "http://localhost:99999/webhook"], "Give a whole URL"),
        (["--url", "http://ada:secret@localhost/webhook"], "A user name in the URL"),
        (["--url", "http://127.0.0.1:9/wéb"], "There is no answer"),
        (["--url", "http://127.0.0.1:9/a b"], "There is no answer"),
        (["--data", "{amount: 5000}"], "This is not JSON"),
        (["--data", "@missing.json"], "Cannot read the file: No such file"),
        (["--data", "[]"], "Give a JSON object"),
        (["--data", '{"amount": NaN}'], "not JSON compliant"),
        (["--event-id", "evt 1"], "id must be 1 to 50 printable ASCII"),
        (["--times", "0"], "0 is not in the range"),
        (["--name", "conect"], "No endpoint is named 'conect'; there is sangho_webhooks."),
    ],
)
def test_what_cannot_be_is_refused(
    sqlite_shop: Shop, events: list[Event], arguments: list[str], text: str
) -> None:
    result = run(sqlite_shop.app, TYPE, *arguments)

    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert text in result.stderr
    assert "secret@" not in result.output
    assert events == []


def test_app_without_a_route_is_explained(sqlite_url: str) -> None:
    app = Flask(__name__)
    app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
    SanghoWebhooks(guard=t.cast(t.Any, object())).init_app(app)
    result = run(app, TYPE)

    assert result.exit_code == 1
    assert "no route for the endpoint 'sangho_webhooks'" in result.stderr


# ---------------------------------------------------------------- what is shown


def test_help_teaches(sqlite_shop: Shop) -> None:
    shown = run(sqlite_shop.app, "--help").output

    assert "    flask --app shop sangho trigger payment_intent.succeeded --times 3\n" in shown
    assert "  payment_intent.  created, succeeded, payment_failed, " in shown
    assert "[default: 1" in shown
    assert "the sample of a payment tells of order 1" in " ".join(shown.split())


def test_types_are_completed(sqlite_shop: Shop) -> None:
    (argument,) = (p for p in trigger.params if p.name == "event_type")

    with trigger.make_context("trigger", [TYPE], resilient_parsing=True) as context:
        found = [item.value for item in argument.shell_complete(context, "invoice.p")]

    assert found == ["invoice.paid", "invoice.payment_failed"]


def test_request_is_as_sanghos(sqlite_shop: Shop) -> None:
    requests: list[tuple[bytes, dict[str, str]]] = []
    app = Flask(__name__)

    @app.post("/hooks")
    def receive() -> str:
        requests.append((request.get_data(), dict(request.headers)))
        return ""

    with served(app) as url:
        run(sqlite_shop.app, TYPE, "--url", f"{url}/hooks?a=b#c")

    ((body, headers),) = requests
    assert headers["Sangho-Event-Id"] == json.loads(body)["id"]
    assert headers["Content-Type"] == "application/json"
