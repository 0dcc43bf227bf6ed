"""Handlers in Celery workers: real brokers, real processes."""

from __future__ import annotations

import base64
import collections.abc as c
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import pathlib
import random
import subprocess
import sys
import time
import typing as t

import celery
import pytest
import redis

from flask_sangho_webhooks import ConfigError, Event
from flask_sangho_webhooks._broker import DELIVERY_PERIOD
from flask_sangho_webhooks.celery import BEAT_SCHEDULE, CeleryQueue, CLEANUP, PROCESS_EVENT

from .celery_support import CeleryShop, Settings, wait, Worker
from .conftest import make_database
from .proxy import Loss, Proxy
from .support import event_body, Shop

QUEUED = {"received": True, "queued": True}
DUPLICATE = {"received": True, "duplicate": True}


def delete_queue(settings: Settings) -> None:
    """Leave nothing on a broker that the tests did not start."""
    if settings.broker_url.startswith("redis"):
        with redis.Redis.from_url(settings.broker_url) as client:
            for key in client.scan_iter(f"*{settings.name}*"):
                client.delete(key)
    else:
        with celery.Celery().connection_for_write(settings.broker_url) as connection:
            connection.default_channel.queue_delete(settings.name)
            connection.default_channel.exchange_delete(settings.name)


@contextlib.contextmanager
def celery_shop(
    database_url: str, broker_url: str, folder: pathlib.Path, **settings: t.Any
) -> c.Iterator[CeleryShop]:
    with CeleryShop(Settings(database_url, broker_url, str(folder), **settings)) as shop:
        try:
            yield shop
        finally:
            delete_queue(shop.settings)


@pytest.fixture(scope="module")
def shop(
    request: pytest.FixtureRequest, broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> c.Iterator[CeleryShop]:
    """An app with a worker, on each broker in turn."""
    database_url = make_database("postgresql", request)

    folder = tmp_path_factory.mktemp("celery")

    with celery_shop(database_url, broker_url, folder) as shop, Worker(shop.settings) as worker:
        shop.worker = worker
        yield shop


@pytest.fixture
def idle_shop(
    sqlite_url: str, broker_kind_url: str, tmp_path: pathlib.Path
) -> c.Iterator[CeleryShop]:
    """An app without a worker, on each kind of broker in turn."""
    with celery_shop(sqlite_url, broker_kind_url, tmp_path) as shop:
        yield shop


def deliver(shop: Shop, event_id: str, **order: t.Any) -> t.Any:
    """Deliver a fresh event that the handler treats as ordered."""
    created = order.pop("created", int(time.time()))
    return shop.deliver(event_id, created=created, data={"object": order}).json


def enqueue(shop: Shop, event_id: str, **order: t.Any) -> None:
    """Send a message, whether or not the event is processed."""
    created = order.pop("created", int(time.time()))
    body = event_body(event_id, created=created, data={"object": order})

    with shop.app.app_context():
        assert shop.webhooks.queue is not None
        shop.webhooks.queue.enqueue(shop.webhooks, Event.from_body(body))


def size(shop: CeleryShop) -> int:
    """How many messages are in the queue."""
    name = shop.settings.name

    if shop.settings.broker_url.startswith("redis"):
        with redis.Redis.from_url(shop.settings.broker_url) as client:
            return t.cast(int, client.llen(name))

    with shop.celery.connection_for_read(shop.settings.broker_url) as connection:
        return int(connection.default_channel.queue_declare(name, passive=True).message_count)


# -------------------------------------------------------------------- one run


def test_event_is_processed_by_a_worker(shop: CeleryShop) -> None:
    assert deliver(shop, "evt_once") == QUEUED
    shop.wait_for("evt_once")
    assert deliver(shop, "evt_once") == DUPLICATE
    assert shop.effects("evt_once") == len(shop.runs("evt_once")) == 1


def test_message_that_comes_twice_runs_once(shop: CeleryShop) -> None:
    """In parallel, and once more after that."""
    enqueue(shop, "evt_twice", seconds=0.5)
    enqueue(shop, "evt_twice", seconds=0.5)
    shop.wait_for("evt_twice")
    enqueue(shop, "evt_twice", seconds=0.5)
    enqueue(shop, "evt_last")
    shop.wait_for("evt_last")
    wait_for_log(shop, "evt_twice", "duplicate", 2)

    assert shop.effects("evt_twice") == len(shop.runs("evt_twice")) == 1
    assert shop.failures("evt_twice") == []
    assert not any("WARNING" in line for line in log_lines(shop, "evt_twice"))


def log_lines(shop: CeleryShop, event_id: str) -> list[str]:
    lines = shop.worker.log.read_text().splitlines()
    return [line for line in lines if f"Event {event_id} " in line]


def wait_for_log(shop: CeleryShop, event_id: str, text: str, times: int) -> None:
    wait(lambda: sum(text in line for line in log_lines(shop, event_id)) >= times)


def test_failed_event_is_tried_again(shop: CeleryShop) -> None:
    deliver(shop, "evt_fails", fails=2)
    shop.wait_for("evt_fails")
    first, second, third = shop.runs("evt_fails")

    assert 0.4 < second - first < third - second
    assert shop.effects("evt_fails") == 1
    assert shop.failures("evt_fails") == [False, False]
    attempts = ["failed", "retry"] * 2
    wait(lambda: shop.notes("outcomes", "evt_fails") == [*attempts, "processed"])


def test_event_is_tried_again_when_the_handler_wants(shop: CeleryShop) -> None:
    deliver(shop, "evt_later", retry_later=2)
    shop.wait_for("evt_later")
    first, second = shop.runs("evt_later")

    assert 2 <= second - first < 5
    assert shop.effects("evt_later") == 1
    assert shop.failures("evt_later") == []
    wait(lambda: shop.notes("outcomes", "evt_later") == ["retry_later", "processed"])


def test_discarded_event_is_not_tried_again(shop: CeleryShop) -> None:
    deliver(shop, "evt_discarded", discards=True)
    shop.wait_for("evt_discarded")
    assert deliver(shop, "evt_discarded") == DUPLICATE
    assert shop.effects("evt_discarded") == 0


def test_event_older_than_48_hours_is_given_up(shop: CeleryShop) -> None:
    created = int(time.time() - DELIVERY_PERIOD.total_seconds() - 1)
    deliver(shop, "evt_old", fails=9, created=created)
    wait(lambda: shop.failures("evt_old") == [False, True])
    wait_for_log(shop, "evt_old", "was given up", 1)
    assert shop.notes("outcomes", "evt_old") == ["failed", "given_up"]
    time.sleep(2)

    assert len(shop.runs("evt_old")) == 1
    assert "evt_old" not in shop.recorded()


def test_old_event_is_processed_all_the_same(shop: CeleryShop) -> None:
    """Also by the one of two messages that finds the event in progress."""
    enqueue(shop, "evt_late", created=1, seconds=0.5)
    enqueue(shop, "evt_late", created=1, seconds=0.5)
    shop.wait_for("evt_late")
    wait_for_log(shop, "evt_late", "duplicate", 1)
    assert shop.effects("evt_late") == 1
    assert shop.failures("evt_late") == []


def test_cleanup_task_deletes_old_records(shop: CeleryShop) -> None:
    model = shop.webhooks.model
    assert model is not None

    with shop.app.app_context():
        for event_id, days in {"evt_4_days": 4, "evt_2_days": 2}.items():
            processed_at = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(days=days)
            shop.db.session.add(model(event_id=event_id, event_type="x", processed_at=processed_at))

        shop.db.session.commit()

    with shop.celery.connection_for_write() as connection:
        shop.celery.send_task(CLEANUP, connection=connection)

    wait(lambda: "evt_4_days" not in shop.recorded())
    assert "evt_2_days" in shop.recorded()


def test_beat_schedule_names_the_cleanup() -> None:
    app = celery.Celery(set_as_current=False)
    app.conf.beat_schedule.update(BEAT_SCHEDULE)
    (entry,) = app.conf.beat_schedule.values()

    assert app.tasks[entry["task"]].name == CLEANUP
    assert entry["schedule"] == dt.timedelta(hours=1)


def test_task_started_on_commit_finds_the_row(shop: CeleryShop) -> None:
    rounds = 500

    with Shop(shop.url) as front, shop.celery.connection_for_write() as connection:

        @front.webhooks.on("invoice.paid")
        def handler(event: Event) -> None:
            note = f"{event.id} committed"
            front.grant(note)
            front.webhooks.on_commit(
                lambda: shop.celery.send_task("tests.look_for", (note,), connection=connection)
            )

        for number in range(rounds):
            assert front.deliver(f"evt_row_{number}", "invoice.paid").status_code == 200

    looks = shop.folder / "looks"
    wait(lambda: looks.exists() and len(looks.read_text().splitlines()) == rounds, 60)
    assert {line.split()[0] for line in looks.read_text().splitlines()} == {"found"}


# ---------------------------------------------------- workers that are killed


def test_event_of_a_killed_process_runs_again(shop: CeleryShop) -> None:
    deliver(shop, "evt_dies", dies=True)
    shop.wait_for("evt_dies")

    assert len(shop.runs("evt_dies")) == 2
    assert shop.effects("evt_dies") == 1


def test_event_of_a_killed_worker_runs_again(
    request: pytest.FixtureRequest, broker_kind_url: str, tmp_path: pathlib.Path
) -> None:
    """The whole worker: the broker gives its messages to another one."""
    url = make_database("postgresql", request)

    with celery_shop(url, broker_kind_url, tmp_path, visibility_timeout=2) as shop:
        with Worker(shop.settings, concurrency=1) as worker:
            deliver(shop, "evt_1", seconds=1)
            wait(lambda: shop.runs("evt_1"))
            worker.kill()

        assert shop.recorded() == []
        assert_runs_with_a_new_worker(shop)
        assert len(shop.runs("evt_1")) == 2


def test_event_that_ran_into_a_hard_time_limit_runs_again(
    request: pytest.FixtureRequest, valkey_url: str, tmp_path: pathlib.Path
) -> None:
    url = make_database("postgresql", request)

    with celery_shop(url, valkey_url, tmp_path, visibility_timeout=2) as shop:
        with Worker(shop.settings, "--time-limit=1", concurrency=1) as worker:
            deliver(shop, "evt_1", hangs=True)
            wait(lambda: "Hard time limit" in worker.log.read_text())
            time.sleep(0.5)

        assert_runs_with_a_new_worker(shop)


def assert_runs_with_a_new_worker(shop: CeleryShop) -> None:
    # Redis, as a broker, gives a message to another worker after this time, and not at once.
    time.sleep(shop.settings.visibility_timeout)

    with Worker(shop.settings, concurrency=1):
        shop.wait_for("evt_1")

    assert shop.effects("evt_1") == 1


def test_event_of_a_killed_process_waits_for_the_lease(
    sqlite_url: str, valkey_url: str, tmp_path: pathlib.Path
) -> None:
    """With RedisGuard, whose claim outlives the process."""
    with (
        celery_shop(sqlite_url, valkey_url, tmp_path, guard_url=valkey_url) as shop,
        Worker(shop.settings),
    ):
        deliver(shop, "evt_1", dies=True)
        wait(lambda: shop.effects("evt_1"))
        first, second = shop.runs("evt_1")
        assert second - first > 1.9
        assert shop.effects("evt_1") == 1
        assert shop.failures("evt_1") == []


def test_events_that_come_often_and_fail_take_effect_once(shop: CeleryShop) -> None:
    chance = random.Random(1)
    ids = [f"evt_many_{number}" for number in range(500)]
    fails = {event_id: int(chance.random() < 0.2) for event_id in ids}
    deliveries = chance.sample(ids * 3, len(ids) * 3)

    with Worker(shop.settings), concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(lambda event_id: deliver(shop, event_id, fails=fails[event_id]), deliveries)
        )
        shop.wait_for(*ids, seconds=120)
        wait(lambda: size(shop) == 0)

    assert all(answer in (QUEUED, DUPLICATE) for answer in answers)
    grants = [note.split()[0] for note in shop.grants() if note.startswith("evt_many_")]
    assert sorted(grants) == sorted(ids)


# -------------------------------------------------------- a broker that is down


@pytest.fixture
def proxied(idle_shop: CeleryShop, broker_kind_url: str) -> c.Iterator[tuple[CeleryShop, Proxy]]:
    """An app that reaches its broker by way of a proxy."""
    with Proxy(broker_kind_url) as proxy:
        idle_shop.celery.conf.broker_url = proxy.url
        yield idle_shop, proxy


def assert_unavailable_in_time(shop: Shop) -> None:
    started = time.monotonic()
    response = shop.deliver()
    seconds = time.monotonic() - started

    assert response.status_code == 503
    assert response.json is not None
    assert response.json["error"] == "unavailable"
    assert seconds < 2.5
    assert shop.recorded() == []


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("silent", [False, True])
def test_delivery_comes_again_while_the_broker_is_down(
    proxied: tuple[CeleryShop, Proxy], silent: bool, used_before: bool
) -> None:
    """Down is who refuses, and who accepts and never answers."""
    shop, proxy = proxied

    if used_before:
        assert deliver(shop, "evt_before") == QUEUED

    if silent:
        proxy.silent = True
    else:
        proxy.refuse()

    assert_unavailable_in_time(shop)

    if silent:
        proxy.silent = False
    else:
        proxy.accept()

    assert deliver(shop, "evt_1") == QUEUED
    assert size(shop) == 1 + used_before


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_lost_message_to_the_broker_is_sent_again(
    proxied: tuple[CeleryShop, Proxy], loss: Loss
) -> None:
    shop, proxy = proxied
    assert deliver(shop, "evt_before") == QUEUED
    proxy.lose(loss, PROCESS_EVENT.encode())

    assert deliver(shop, "evt_1") == QUEUED
    assert proxy.has_lost
    assert size(shop) == (2 if loss == "request" else 3)


def test_lost_confirmation_is_no_success(proxied: tuple[CeleryShop, Proxy]) -> None:
    """On a new connection there is no second attempt."""
    shop, proxy = proxied
    proxy.lose("request", PROCESS_EVENT.encode())
    assert_unavailable_in_time(shop)
    assert proxy.has_lost


def test_second_broker_takes_over(proxied: tuple[CeleryShop, Proxy]) -> None:
    shop, proxy = proxied
    proxy.refuse()
    shop.celery.conf.broker_url = [proxy.url, shop.settings.broker_url]
    assert deliver(shop, "evt_1") == QUEUED


def test_queue_that_was_deleted_is_declared_again(idle_shop: CeleryShop) -> None:
    assert deliver(idle_shop, "evt_1") == QUEUED
    delete_queue(idle_shop.settings)
    assert deliver(idle_shop, "evt_2") == QUEUED
    assert size(idle_shop) == 1


def test_broker_that_is_stopped_and_comes_back(
    valkey: t.Any, sqlite_url: str, tmp_path: pathlib.Path
) -> None:
    with celery_shop(sqlite_url, f"{valkey.connection_url}/0", tmp_path) as shop:
        assert deliver(shop, "evt_before") == QUEUED
        valkey.stop()
        assert_unavailable_in_time(shop)
        valkey.start()
        assert deliver(shop, "evt_1") == QUEUED

        with Worker(shop.settings):
            shop.wait_for("evt_1")


def test_event_whose_retry_cannot_be_published_is_kept(
    idle_shop: CeleryShop, broker_kind_url: str
) -> None:
    """The worker still has its connection, but gets no new one to publish on."""
    with Proxy(broker_kind_url) as proxy:
        settings = dataclasses.replace(idle_shop.settings, broker_url=proxy.url)

        with Worker(settings, concurrency=1):
            deliver(idle_shop, "evt_1", fails=1, seconds=1)
            wait(lambda: idle_shop.runs("evt_1"))
            proxy.refuse_new()
            wait(lambda: len(idle_shop.runs("evt_1")) > 1)
            proxy.accept()
            idle_shop.wait_for("evt_1")

    assert idle_shop.effects("evt_1") == 1


# ------------------------------------------------------------- without a broker


@pytest.fixture
def eager_shop(sqlite_url: str, tmp_path: pathlib.Path) -> c.Iterator[CeleryShop]:
    """An app for which Celery runs tasks at once, as its users' tests do."""
    with CeleryShop(Settings(sqlite_url, "memory://", str(tmp_path))) as shop:
        shop.celery.conf.task_always_eager = True
        yield shop


def test_eager_task_does_as_the_handler_does(eager_shop: CeleryShop) -> None:
    eager_shop.app.config["PROPAGATE_EXCEPTIONS"] = True

    with pytest.raises(RuntimeError):
        deliver(eager_shop, "evt_1", fails=1)

    assert deliver(eager_shop, "evt_1", fails=1) == QUEUED
    assert deliver(eager_shop, "evt_1", fails=1) == DUPLICATE
    assert eager_shop.effects("evt_1") == 1


def message(shop: Shop, body: bytes) -> t.Any:
    """What the queue sends."""
    app = celery.Celery(broker="memory://", set_as_current=False)
    queue = CeleryQueue(app)

    with shop.app.app_context():
        queue.enqueue(shop.webhooks, Event.from_body(body))

    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as simple:
        sent = simple.get(timeout=5)

    queue.close()
    return sent


def run_task(shop: CeleryShop, app: celery.Celery, endpoint: str = "sangho_webhooks") -> t.Any:
    _, arguments, _ = message(shop, event_body(data={"object": {}})).payload
    task = app.tasks[PROCESS_EVENT]
    return task.apply(kwargs={**arguments, "endpoint": endpoint}, throw=True).get()


def test_worker_with_a_flask_app_of_its_own(eager_shop: CeleryShop) -> None:
    app = celery.Celery(set_as_current=False)
    app.flask_app = eager_shop.app
    assert run_task(eager_shop, app) == "processed"


def test_worker_without_a_flask_app_says_so(eager_shop: CeleryShop) -> None:
    with pytest.raises(ConfigError, match=r"celery_app\.flask_app"):
        run_task(eager_shop, celery.Celery(set_as_current=False))


def test_worker_without_the_handler_says_so(eager_shop: CeleryShop) -> None:
    """The event was answered 202 by a process that has one; it must not pass for processed."""
    eager_shop.webhooks._registry.handlers.clear()

    with pytest.raises(ConfigError, match="no handler for 'payment_intent"):
        run_task(eager_shop, eager_shop.celery)


def test_worker_without_the_endpoint_says_so(eager_shop: CeleryShop) -> None:
    with pytest.raises(ConfigError, match="no endpoint 'connect'"):
        run_task(eager_shop, eager_shop.celery, "connect")


def test_message_is_json_with_the_bytes_that_were_signed(eager_shop: CeleryShop) -> None:
    body = event_body(note="né €").replace(b": ", b" :  ") + b"\r\n"
    sent = message(eager_shop, body)

    assert sent.content_type == "application/json"
    assert base64.b64decode(sent.payload[1]["body"]) == body


def test_celery_shows_the_id_of_an_event_and_not_its_body(eager_shop: CeleryShop) -> None:
    headers = message(eager_shop, event_body()).headers
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("()", "{'event_id': 'evt_1'}")


@pytest.mark.parametrize("publish_timeout", [0, -1, float("nan")])
def test_publish_timeout_is_checked(publish_timeout: float) -> None:
    with pytest.raises(ConfigError, match="'publish_timeout' must be a number greater than 0"):
        CeleryQueue(publish_timeout=publish_timeout)


def test_event_without_a_body_cannot_be_queued(eager_shop: CeleryShop) -> None:
    with eager_shop.app.app_context(), pytest.raises(ValueError, match="no body"):
        CeleryQueue().enqueue(eager_shop.webhooks, Event(id="evt_1", type="invoice.paid"))


def test_module_without_the_extra_says_so() -> None:
    code = (
        "import sys; sys.modules['celery'] = None\n"
        "from flask_sangho_webhooks import ConfigError\n"
        "try: import flask_sangho_webhooks.celery\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        'CeleryQueue needs the celery extra: pip install "flask-sangho-webhooks[celery]"'
    )
