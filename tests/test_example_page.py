"""The example shop's page, and what its buttons deliver. For a browser there is tests/browser."""

from __future__ import annotations

import collections.abc as c
import contextlib
import datetime as dt
import http.client
import itertools
import pathlib
import re
import threading
import time
import typing as t
import urllib.parse

import pytest
import sqlalchemy as sa
from flask import request
from werkzeug.serving import make_server

from example_app import create_app, scenes
from example_app.delivery import Endpoint, Payment
from example_app.models import db, Grant, Product
from example_app.page import GIVEN_UP
from example_app.scenes import Delivery, EXAMPLE_SECRET
from flask_sangho_webhooks.testing import sign

from .support import SECRET

PROCESSED = "200 processed"
STATIC = pathlib.Path(__file__).parent.parent / "example_app" / "static"


class Served:
    """A shop behind a real server, and somebody who looks at its page.

    :param folder: with the shop's database, or empty.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.app = create_app(str(folder))
        self.port = 0

    @contextlib.contextmanager
    def serve(self, threaded: bool) -> c.Iterator[None]:
        server = make_server("127.0.0.1", 0, self.app, threaded=threaded)
        self.port = server.port
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()

        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def post(self, path: str) -> str:
        """Press a button without a script.

        :return: where it leads to.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

        with contextlib.closing(connection):
            connection.request("POST", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 303
            return urllib.parse.urlsplit(response.headers["Location"]).path

    def play(self, name: str) -> Page:
        """Press a button, and look again and again until everything is delivered."""
        assert self.post(f"/play/{name}") == "/"
        deadline = time.monotonic() + 10

        while (page := self.page()).state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.02)

        return page

    def page(self) -> Page:
        response = self.app.test_client().get("/")
        assert response.status_code == 200
        return Page(response.text)

    def dispose(self) -> None:
        with self.app.app_context():
            for engine in db.engines.values():
                engine.dispose()


class Page:
    """What a page says."""

    def __init__(self, html: str) -> None:
        self.html = html
        self.text = text_of(html)

    @property
    def state(self) -> str:
        return self._find(r'data-state="(\w*)"')

    @property
    def verdict(self) -> str:
        return text_of(self._find(r'(<p id="verdict".*?</p>)'))

    @property
    def answers(self) -> list[str]:
        """Status and word of each answer of the scene that was played last."""
        table = self._find(r"(<table>.*?</table>)")
        return [" ".join(found) for found in re.findall(r">(\d{3})</span><td><b>(.*?)</b>", table)]

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, self.html, re.DOTALL)
        assert found is not None
        return found[1]


def text_of(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


@pytest.fixture
def new_shop(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> c.Iterator[c.Callable[[], Served]]:
    """Makes a shop without settings, each time on the same database."""
    monkeypatch.delenv("FLASK_SANGHO_WEBHOOK_SECRET", raising=False)
    monkeypatch.delenv("FLASK_SQLALCHEMY_DATABASE_URI", raising=False)
    monkeypatch.setattr(scenes, "PAUSE", 0.01)
    shops: list[Served] = []

    def make() -> Served:
        shops.append(Served(tmp_path))
        return shops[-1]

    yield make

    for shop in shops:
        shop.dispose()


@pytest.fixture
def shop(new_shop: c.Callable[[], Served]) -> c.Iterator[Served]:
    shop = new_shop()

    with shop.serve(threaded=True):
        yield shop


def test_pay(shop: Served) -> None:
    page = shop.play("pay")

    assert page.answers == [PROCESSED]
    assert page.verdict == (
        "Order A-1001 was paid exactly once: 1 row in the ledger. 1 delivery: 1 processed"
    )
    assert "A-1001 solar lamp 5000 paid 1 ×" in page.text


@pytest.mark.parametrize("threaded", [True, False])
def test_five_at_once(new_shop: c.Callable[[], Served], threaded: bool) -> None:
    """Also behind a server that answers one request at a time, and must not wait for itself."""
    shop = new_shop()

    with shop.serve(threaded):
        page = shop.play("five")

    assert len(page.answers) >= 5
    assert page.answers.count(PROCESSED) == 1
    assert set(page.answers) <= {
        PROCESSED,
        "200 duplicate",
        "503 in progress",
        "503 unavailable",
    }
    assert page.verdict.startswith("Order A-1001 was paid exactly once: 1 row in the ledger.")


def test_five_are_sent_at_the_same_moment(shop: Served) -> None:
    """None of them is answered before all have come."""
    all_here = threading.Barrier(5)
    coming = itertools.count()

    @shop.app.before_request
    def wait() -> None:
        if request.endpoint == "sangho_webhooks.receive" and next(coming) < 5:
            all_here.wait(5)

    assert shop.play("five").answers.count(PROCESSED) == 1
    assert not all_here.broken


def test_tampered(shop: Served) -> None:
    page = shop.play("tampered")

    assert page.answers == ["401 rejected"]
    assert page.verdict == ("Order A-1001 stays open: no row in the ledger. 1 delivery: 1 rejected")
    assert "A-1001 solar lamp 5000 open 0 ×" in page.text


def test_handler_fails_once(shop: Served) -> None:
    for reference in ("A-1004", "A-1008"):  # of the second radio there is no order yet
        page = shop.play("failing")

        assert page.answers == ["500 failed", PROCESSED]
        assert page.verdict == (
            f"Order {reference} was paid exactly once: 1 row in the ledger."
            " 2 deliveries: 1 failed, 1 processed"
        )


def test_handler_that_fails_for_good_is_delivered_four_times(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "STOCK", 0)

    page = shop.play("failing")

    assert page.answers == ["500 failed"] * 4
    assert page.verdict.startswith("Not as promised. Order A-1004 is open: 0 in the ledger.")


@pytest.mark.parametrize("name", ["pay", "tampered"])
def test_page_says_when_a_promise_is_broken(shop: Served, name: str) -> None:
    shop.play(name)

    with shop.app.app_context():
        db.session.add(Grant(order_reference="A-1001", event_id="evt_again"))
        db.session.commit()

    assert shop.page().verdict.startswith("Not as promised. Order A-1001 is ")
    assert shop.page().state == "broken"


def test_page_that_is_made_while_an_order_is_paid_breaks_no_promise(shop: Served) -> None:
    queries = itertools.count()
    me = threading.current_thread()

    with shop.app.app_context():
        engine = db.engine

    @sa.event.listens_for(engine, "before_cursor_execute")
    def pay(*_: object) -> None:
        if threading.current_thread() is me and next(queries) == 1:
            assert shop.play("pay").state == "kept"

    page = shop.page()

    assert next(queries) > 1
    assert page.state != "broken"


def test_page_says_when_two_deliveries_are_processed(shop: Served) -> None:
    shop.play("five")

    with shop.app.app_context():
        db.session.execute(sa.update(Delivery).values(answer="200 received"))
        db.session.commit()

    assert shop.page().state == "broken"


def test_server_that_does_not_answer(shop: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Endpoint("127.0.0.1", 1)
    monkeypatch.setattr("example_app.page.Endpoint", lambda *_: refused)

    page = shop.play("pay")

    assert page.verdict.endswith("4 deliveries: 4 no answer (ConnectionRefusedError)")
    assert page.state == "broken"


def test_state_survives_a_restart(new_shop: c.Callable[[], Served]) -> None:
    first = new_shop()

    with first.serve(threaded=True):
        before = first.play("five")

    assert new_shop().page().text == before.text


def test_delivery_that_a_restart_cut_off_is_given_up(shop: Served) -> None:
    shop.play("pay")

    def set_age(age: dt.timedelta) -> str:
        with shop.app.app_context():
            values = {"answer": None, "sent_at": scenes.now() - age}
            db.session.execute(sa.update(Delivery).values(values))
            db.session.commit()

        return shop.page().state

    assert set_age(dt.timedelta(0)) == "running"
    assert set_age(GIVEN_UP) == "kept"


def test_reset(shop: Served) -> None:
    fresh = shop.page().text
    shop.play("pay")
    shop.play("failing")

    assert shop.post("/reset") == "/"
    assert shop.page().text == fresh

    assert shop.play("pay").answers == [PROCESSED]


def test_each_scene_has_an_order_of_its_own_and_enough_in_stock(shop: Served) -> None:
    with shop.app.app_context():
        db.session.execute(sa.update(Product).values(stock=0))
        db.session.commit()

    for reference in ("A-1001", "A-1002"):
        assert f"Order {reference} was paid exactly once" in shop.play("pay").verdict


def test_endpoint_is_found_below_any_address(
    new_shop: c.Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints: list[t.Any] = []
    monkeypatch.setattr(scenes, "start", lambda _, endpoint: endpoints.append(endpoint))
    client = new_shop().app.test_client()

    for server in ("http://0.0.0.0:5001/", "http://192.0.2.1:5001/shop"):
        assert client.post("/play/pay", base_url=server).status_code == 303

    assert endpoints == [("127.0.0.1", 5001, "/webhook"), ("192.0.2.1", 5001, "/shop/webhook")]


def test_unknown_scene(new_shop: c.Callable[[], Served]) -> None:
    assert new_shop().app.test_client().post("/play/elsewhere").status_code == 404


def test_shop_with_a_secret_of_its_own_has_no_player(
    new_shop: c.Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise whoever sees the page could have orders paid."""
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", SECRET)
    shop = new_shop()
    client = shop.app.test_client()
    body = Payment("A-1001").body

    assert "<button" not in shop.page().html
    assert client.post("/play/pay").status_code == 404
    assert client.post("/reset").status_code == 404

    for secret, status in ((EXAMPLE_SECRET, 401), (SECRET, 200)):
        headers = {"Sangho-Signature": sign(body, secret)}
        assert client.post("/webhook", data=body, headers=headers).status_code == status


def test_page_needs_nothing_from_elsewhere(new_shop: c.Callable[[], Served]) -> None:
    client = new_shop().app.test_client()
    response = client.get("/")

    assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert re.findall(r"<style|<script>|\son\w+=|\sstyle=", response.text) == []

    for link in re.findall(r'(?:href|src|action)="(.*?)"', response.text):
        assert link.startswith("/")

    for file in STATIC.iterdir():
        assert f'"/static/{file.name}"' in response.text
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r"url\(|@import|https?:", text) == []
