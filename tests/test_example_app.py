"""The example shop, and the demo that plays Sangho against it."""

from __future__ import annotations

import collections.abc as c
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

import pytest
import sqlalchemy as sa
from flask import Flask, request
from flask.testing import FlaskClient
from werkzeug.serving import make_server
from werkzeug.test import TestResponse

from example_app import create_app
from example_app.__main__ import main, report
from example_app.delivery import DUPLICATE, Payment, RECEIVED
from example_app.models import db, Grant, open_shop
from example_app.player import Line, NOT_NOW, Player, Promise, Receiver
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = (sys.executable, "-m", "example_app")

PROMISES = {
    "A first delivery": [("200 received", "A-1001: 1"), ("200 duplicate", "A-1001: 1")],
    "Deliveries that must not be trusted": [
        ("401 mismatch", "A-1003: 0"),
        ("400 expired", "A-1003: 0"),
        ("200 received", "A-1003: 1"),
    ],
    "A handler that fails once: nothing is left on the shelf": [
        ("500 internal server error", "A-1004: 0"),
        ("200 received", "A-1004: 1"),
        ("200 duplicate", "A-1004: 1"),
    ],
    "A secret that is being rotated": [
        ("401 mismatch", "A-1007: 0"),
        ("200 received", "A-1005: 1"),
        ("200 received", "A-1006: 1"),
        ("200 received", "A-1007: 1"),
        ("200 duplicate", "A-1005: 1"),
    ],
}


class Demo(t.NamedTuple):
    """A run of ``python -m example_app``."""

    status: int
    output: str
    left_behind: list[str]

    def section(self, heading: str) -> str:
        """The lines below a heading."""
        return self.output.split(f"\n{heading}\n")[1].split("\n\n")[0]


def environment(folder: pathlib.Path) -> dict[str, str]:
    # The settings of another app must not reach the demo's.
    return {**os.environ, "TMPDIR": str(folder), "FLASK_SANGHO_WEBHOOK_TOLERANCE": "9999"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=30
    )
    output = done.stdout + done.stderr
    return Demo(done.returncode, output, [path.name for path in folder.iterdir()])


def is_served(output: str) -> bool:
    """Whether something still listens where the shop did."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", output)
    assert found is not None

    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(found[1]))) == 0


# ------------------------------------------------------------------------ demo


def test_demo_keeps_every_promise(demo: Demo) -> None:
    assert "17 of 17 lines are as promised." in demo.output
    assert " NO" not in demo.output
    assert demo.status == 0


@pytest.mark.parametrize("heading", PROMISES)
def test_demo_shows_promise(demo: Demo, heading: str) -> None:
    rows = [re.split(" {2,}", row) for row in demo.section(heading).splitlines()]

    assert [(row[-3], row[-2]) for row in rows if row[-1] == "yes"] == PROMISES[heading]


def test_demo_runs_simultaneous_duplicates_once(demo: Demo) -> None:
    section = demo.section("20 deliveries of one event at the same moment")
    answers = re.findall(r"(\d+) x (\d+ \w+)", section)

    assert ("1", RECEIVED) in answers
    assert {answer for _, answer in answers} <= {RECEIVED, *NOT_NOW}
    assert sum(int(number) for number, _ in answers) == 20
    assert re.search(r"the same once more +200 duplicate +A-1002: 1 +yes", section)


def test_demo_deletes_old_record_only(demo: Demo) -> None:
    section = demo.section("Cleaning up: one record is 73 hours old, one 71")

    assert re.search(r"flask sangho cleanup  .* in all: 7 +yes", section)
    assert re.search(r"A-1002 is paid, known for 71 +200 duplicate +A-1002: 1 +yes", section)


def test_demo_migrates_with_packaged_migration(demo: Demo) -> None:
    assert re.search(r"^\$ flask sangho upgrade\n.*'processed_webhook_events'", demo.output)


def test_demo_fits_terminal(demo: Demo) -> None:
    assert demo.output.isascii()
    assert max(map(len, demo.output.splitlines())) <= 100


def test_demo_prints_no_secret(demo: Demo) -> None:
    assert "whsec_" not in demo.output


def test_demo_leaves_nothing_behind(demo: Demo) -> None:
    assert demo.left_behind == []
    assert not is_served(demo.output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(number: int, tmp_path: pathlib.Path) -> None:
    with subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        output = ""

        while "http://" not in output:
            line = process.stdout.readline()
            assert line, "The demo ended early."
            output += line

        process.send_signal(number)
        process.stdout.read()
        assert process.wait(10) == 128 + number

    assert list(tmp_path.iterdir()) == []
    assert not is_served(output)


@pytest.mark.parametrize("name", ["gunicorn", "sangho"])
def test_demo_names_missing_package(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)

    assert main() == 1

    message = capsys.readouterr().err
    assert f"needs {name}." in message
    assert re.search(r"python -m pip install -r \S*example_app.requirements\.txt", message)


# ------------------------------------------------- the demo notices what is wrong


@pytest.fixture
def naive_receiver(sqlite_url: str) -> c.Iterator[Receiver]:
    """A shop that verifies nothing, looks first and inserts later."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = sqlite_url
    db.init_app(app)

    @app.post("/webhook")
    def receive() -> dict[str, bool]:
        event = request.get_json()
        reference = event["data"]["object"]["metadata"]["order"]

        if db.session.scalar(sa.select(Grant.id).where(Grant.event_id == event["id"]).limit(1)):
            return {"received": True, "duplicate": True}

        time.sleep(0.1)
        db.session.add(Grant(order_reference=reference, event_id=event["id"]))
        db.session.commit()
        return {"received": True}

    with app.app_context():
        open_shop()

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    try:
        database = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
        yield Receiver(server.port, database, ("whsec_new", "whsec_old"), lambda *_: "")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        dispose(app)


def test_demo_fails_for_naive_receiver(
    naive_receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = list(Player(naive_receiver).play())

    assert report(lines) == 1
    assert "6 of 17 lines are as promised." in capsys.readouterr().out

    kept = [
        (line.answers[0], line.ledger) for line in lines if isinstance(line, Line) and line.kept
    ]
    assert kept == [
        (RECEIVED, "A-1001: 1"),
        (DUPLICATE, "A-1001: 1"),
        (DUPLICATE, "A-1004: 1"),
        (RECEIVED, "A-1005: 1"),
        (RECEIVED, "A-1006: 1"),
        (DUPLICATE, "A-1005: 1"),
    ]


@pytest.mark.parametrize(
    ("answers", "grants"),
    [
        ([RECEIVED, DUPLICATE], 2),
        ([RECEIVED, DUPLICATE], 0),
        ([RECEIVED, RECEIVED], 1),
        ([DUPLICATE, DUPLICATE], 1),
        ([RECEIVED, "500 internal server error"], 1),
        ([RECEIVED, "no answer (TimeoutError)"], 1),
        ([], 1),
    ],
)
def test_promise_is_broken(answers: list[str], grants: int) -> None:
    assert not Promise(RECEIVED, 1, NOT_NOW).is_kept(answers, grants)


def test_demo_without_lines_fails() -> None:
    assert report([]) == 1


# ------------------------------------------------------------------------ shop


@pytest.fixture
def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> c.Iterator[Flask]:
    """The shop on a database of each kind in turn, set up by its commands."""
    monkeypatch.setenv("FLASK_SQLALCHEMY_DATABASE_URI", database_url)
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", SECRET)
    app = create_app()

    for command in ("sangho upgrade", "open-shop", "open-shop"):
        result = app.test_cli_runner().invoke(args=command.split())
        assert result.exit_code == 0, result.output

    yield app
    dispose(app)


def dispose(app: Flask) -> None:
    with app.app_context():
        for engine in db.engines.values():
            engine.dispose()


def deliver(app: Flask, body: bytes) -> TestResponse:
    client: FlaskClient = app.test_client()
    return client.post("/webhook", data=body, headers={"Sangho-Signature": sign(body, SECRET)})


def index(app: Flask) -> str:
    """The text of the index page, without its markup."""
    response = app.test_client().get("/")
    assert response.status_code == 200
    return " ".join(re.sub("<[^>]*>", " ", response.text).split())


def test_shop_lists_orders_and_ledger(app: Flask) -> None:
    page = index(app)

    assert "A-1001 solar lamp 5000 open" in page
    assert "Granted at (UTC) Order Event nothing yet" in page


def test_shop_grants_order_once(app: Flask) -> None:
    payment = Payment("A-1001")

    assert deliver(app, payment.body).json == {"received": True}
    assert deliver(app, payment.body).json == {"received": True, "duplicate": True}

    page = index(app)
    assert "A-1001 solar lamp 5000 paid" in page
    assert page.count(payment.event_id) == 1


def test_shop_sends_receipt_after_commit_only(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, app.logger.name)

    assert deliver(app, Payment("A-1004").body).status_code == 500  # out of stock
    assert deliver(app, Payment("A-1001").body).status_code == 200

    receipts = [message for message in caplog.messages if "receipt" in message]
    assert receipts == ["A receipt for order A-1001 is on its way."]


def test_failed_payment_does_not_undo_paid_order(app: Flask) -> None:
    failed = json.dumps(
        {**json.loads(Payment("A-1001").body), "type": "payment_intent.payment_failed"}
    ).encode()
    deliver(app, Payment("A-1001").body)

    assert deliver(app, failed).status_code == 200
    assert "A-1001 solar lamp 5000 paid" in index(app)


def test_payment_without_order_is_discarded(app: Flask) -> None:
    response = deliver(app, event_body(data={"object": {"id": "pi_1"}}))

    assert response.json == {"received": True, "discarded": True}


def test_payment_that_overtakes_its_order_is_delivered_later(app: Flask) -> None:
    response = deliver(app, Payment("A-2000").body)

    assert (response.status_code, response.headers["Retry-After"]) == (503, "30")


def test_shop_opens_by_itself_and_names_the_setting_for_real_deliveries(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FLASK_SANGHO_WEBHOOK_SECRET", raising=False)
    monkeypatch.delenv("FLASK_SQLALCHEMY_DATABASE_URI", raising=False)
    app = create_app(str(tmp_path))

    try:
        assert "A-1001 solar lamp 5000 open" in index(app)
        assert deliver(app, Payment("A-1001").body).status_code == 401
        assert "set FLASK_SANGHO_WEBHOOK_SECRET" in caplog.text
        assert (tmp_path / "shop.sqlite3").is_file()
    finally:
        dispose(app)
