"""What several threads, processes and failures do to one event."""

from __future__ import annotations

import collections
import collections.abc as c
import multiprocessing
import os
import signal
import statistics
import threading
import time
import typing as t
import uuid

import pytest
import sqlalchemy as sa

from flask_sangho_webhooks import Event, Outcome, SQLGuard
from flask_sangho_webhooks.guards.base import Dispatch

from .support import Shop, TYPE

ROUNDS = 200
PROCESSES = 2
THREADS = 8

spawn = multiprocessing.get_context("spawn")
Answers = list[tuple[int, int, str]]


class NaiveGuard(SQLGuard):
    """Checks, handles, then records: what the guide's list of steps amounts to."""

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        if self.seen(event.id):
            return Outcome.DUPLICATE

        dispatch()

        with self.db.engine.begin() as connection:
            row = {"event_id": event.id, "event_type": event.type}
            connection.execute(sa.insert(self.table).values(row))

        return Outcome.PROCESSED


def deliver_in_step(
    url: str, naive: bool, rounds: int, barrier: t.Any, answers: multiprocessing.Queue[Answers]
) -> None:
    """One process: its threads deliver the same event at the same moment, round after round."""
    pool = {"pool_size": THREADS, "max_overflow": 0}
    shop = Shop(url, config={"SQLALCHEMY_ENGINE_OPTIONS": pool})

    if naive:
        shop.webhooks.guard = NaiveGuard(shop.db)
        shop.webhooks.init_app(shop.app)

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(f"{event.id} {uuid.uuid4().hex}")

    def deliver(mine: Answers) -> None:
        for number in range(rounds):
            barrier.wait(60)
            response = shop.deliver(f"evt_{number}")
            mine.append((number, response.status_code, response.text.strip()))

    collected: Answers = []
    threads = [threading.Thread(target=deliver, args=[collected]) for _ in range(THREADS)]

    with shop:
        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join()

    answers.put(collected)


def race(url: str, *, naive: bool = False, rounds: int = ROUNDS) -> tuple[Answers, Shop]:
    observer = Shop(url)

    with observer:
        barrier = spawn.Barrier(PROCESSES * THREADS)
        queue: multiprocessing.Queue[Answers] = spawn.Queue()
        arguments = (url, naive, rounds, barrier, queue)
        processes = [
            spawn.Process(target=deliver_in_step, args=arguments) for _ in range(PROCESSES)
        ]

        for process in processes:
            process.start()

        answers = [answer for _ in processes for answer in queue.get(timeout=240)]

        for process in processes:
            process.join(30)
            assert process.exitcode == 0

    return answers, observer


def test_one_run_in_each_round(database_url: str) -> None:
    answers, observer = race(database_url)
    runs = collections.Counter(note.split()[0] for note in observer.grants())
    processed = collections.Counter(n for n, _, body in answers if body == '{"received":true}')
    others = {(status, body) for _, status, body in answers if body != '{"received":true}'}

    assert runs == {f"evt_{number}": 1 for number in range(ROUNDS)}
    assert processed == {number: 1 for number in range(ROUNDS)}
    assert len(answers) == ROUNDS * PROCESSES * THREADS
    assert {status for status, _ in others} <= {200, 503}
    assert {body for status, body in others if status == 200} == {
        '{"duplicate":true,"received":true}'
    }


def test_the_race_catches_a_guard_that_looks_first(postgresql_url: str) -> None:
    _, observer = race(postgresql_url, naive=True, rounds=20)
    runs = collections.Counter(note.split()[0] for note in observer.grants())
    assert max(runs.values()) > 1


@pytest.fixture
def slow(shop: Shop) -> c.Iterator[SlowHandler]:
    handler = SlowHandler(shop)

    try:
        yield handler
    finally:
        handler.finish()


class SlowHandler:
    """A handler that runs in a thread until it is told to end, the first time by failing."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.running = threading.Event()
        self.release = threading.Event()
        self.runs = 0
        shop.webhooks.on(TYPE)(self.handle)
        shop.webhooks.on("invoice.paid")(self.handle_other)
        shop.deliver("evt_warm", "invoice.paid")
        self.thread = threading.Thread(target=shop.deliver)
        self.thread.start()
        assert self.running.wait(10)

    def handle(self, event: Event) -> None:
        self.runs += 1
        self.shop.grant(f"{event.id} {self.runs}")
        self.shop.db.session.commit()

        if self.runs == 1:
            self.running.set()
            self.release.wait(20)
            raise RuntimeError

    def handle_other(self, event: Event) -> None:
        self.shop.grant(event.id)

    def finish(self) -> None:
        self.release.set()
        self.thread.join()


def test_duplicate_in_flight_holds_no_worker(slow: SlowHandler) -> None:
    shop = slow.shop
    limit = 0.05 if shop.url.startswith("postgresql") else 2 + 0.5
    seconds = []

    for _ in range(5 if shop.url.startswith("postgresql") else 1):
        started = time.monotonic()
        response = shop.deliver()
        seconds.append(time.monotonic() - started)
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "30"

    assert statistics.median(seconds) < limit
    slow.finish()
    assert shop.recorded() == ["evt_warm"]
    assert shop.deliver().json == {"received": True}
    assert shop.grants() == ["evt_1 2", "evt_warm"]


def test_other_events_go_on_while_a_handler_runs(slow: SlowHandler) -> None:
    # SQLite has one writer at a time.
    expected = 503 if slow.shop.url.startswith("sqlite") else 200
    assert slow.shop.deliver("evt_other", "invoice.paid").status_code == expected


def test_claim_of_code_without_the_extension(shop: Shop) -> None:
    """Someone else's uncommitted insert of the id, such as the code that this replaces."""
    runs: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: runs.append(event.id))
    model = shop.webhooks.model
    assert model is not None

    with shop.app.app_context(), shop.db.engine.connect() as connection:
        row = {"event_id": "evt_1", "event_type": TYPE}
        connection.execute(sa.insert(model).values(row))
        started = time.monotonic()
        assert shop.deliver().status_code == 503
        assert time.monotonic() - started < 2 + 0.5
        connection.commit()

    assert shop.deliver().json == {"received": True, "duplicate": True}
    assert runs == []


def test_lock_timeout_of_the_session_is_left_alone(postgresql_url: str) -> None:
    options = {"connect_args": {"options": "-c lock_timeout=12345"}}

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        seen: list[str | None] = []

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            seen.append(shop.db.session.scalar(sa.text("SHOW lock_timeout")))

        shop.deliver()
        assert seen == ["12345ms"]


def test_busy_timeout_of_the_connection_is_left_alone(sqlite_shop: Shop) -> None:
    seen: list[int | None] = []

    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        seen.append(sqlite_shop.db.session.scalar(sa.text("PRAGMA busy_timeout")))

    sqlite_shop.deliver()
    assert seen == [5000]


def killed_in_the_handler(url: str) -> None:
    shop = Shop(url)

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.commit()
        os.kill(os.getpid(), signal.SIGKILL)

    shop.deliver()


def test_kill_in_the_handler(shop: Shop) -> None:
    shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
    process = spawn.Process(target=killed_in_the_handler, args=[shop.url])
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert shop.deliver_after_loss().json == {"received": True}
    assert shop.grants() == ["evt_1"]


KILL = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mariadb": "KILL {}",
}
CONNECTION_ID = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
@pytest.mark.parametrize("moment", ["in the handler", "before the commit"])
def test_lost_connection(dialect: str, moment: str, request: pytest.FixtureRequest) -> None:
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")
    broken, killed = [True], list[int]()

    def kill(number: int) -> None:
        with shop._observer.connect() as connection:
            connection.exec_driver_sql(KILL[dialect].format(number))

        killed.append(number)
        time.sleep(0.1)

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()

        if not broken:
            return

        number: int = shop.db.session.scalar(sa.text(CONNECTION_ID[dialect]))

        if moment == "in the handler":
            kill(number)
        else:
            # The savepoint of the session is released by then, the transaction is not committed.
            sa.event.listen(shop.db.session(), "after_commit", lambda session: kill(number))

    assert shop.deliver().status_code == 503
    assert len(killed) == 1
    assert shop.recorded() == []
    assert shop.grants() == []
    broken.clear()
    assert shop.deliver().json == {"received": True}
    assert shop.grants() == ["evt_1"]


def test_serialization_failure(postgresql_url: str) -> None:
    options = {"isolation_level": "SERIALIZABLE"}

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        barrier = threading.Barrier(2)
        together = [True]
        answers: list[int] = []

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            count = shop.db.session.scalar(sa.select(sa.func.count()).select_from(shop.Grant))

            if together:
                barrier.wait(10)

            shop.grant(f"{event.id} after {count}")

        def deliver(event_id: str) -> None:
            answers.append(shop.deliver(event_id).status_code)

        threads = [threading.Thread(target=deliver, args=[e]) for e in ("evt_1", "evt_2")]

        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join()

        assert sorted(answers) == [200, 503]
        together.clear()
        assert {shop.deliver("evt_1").status_code, shop.deliver("evt_2").status_code} == {200}
        assert sorted(note.split()[-1] for note in shop.grants()) == ["0", "1"]
