"""Deleting old records: exactly the expired ones, in short transactions, beside deliveries."""

from __future__ import annotations

import collections.abc as c
import contextlib
import datetime as dt
import pathlib
import signal
import sqlite3
import subprocess
import threading
import time
import typing as t

import pytest
import sqlalchemy as sa

from flask_sangho_webhooks import Event
from flask_sangho_webhooks.guards import _batch, _cleanup, SQLGuard

from .commands import environment, flask, flask_command, write_app
from .conftest import make_database
from .records import count, fill, insert, TABLE
from .support import Shop, TYPE

RETENTION = dt.timedelta(hours=72)


def guard_of(shop: Shop) -> SQLGuard:
    with shop.app.app_context():
        guard = shop.webhooks.endpoint().guard

    assert isinstance(guard, SQLGuard)
    return guard


def cleanup(
    shop: Shop, batch_size: int = 1000, progress: c.Callable[[int], None] | None = None
) -> int:
    with shop.app.app_context():
        return guard_of(shop).cleanup(RETENTION, batch_size=batch_size, progress=progress)


# ------------------------------------------------------------ what is deleted


def test_expired_records_are_deleted_and_no_others(shop: Shop) -> None:
    insert(shop, {"evt_0": 0, "evt_71": 71, "evt_73": 73, "evt_999": 999})

    assert cleanup(shop) == 2
    assert shop.recorded() == ["evt_0", "evt_71"]


def test_record_without_a_time_is_kept(shop: Shop) -> None:
    insert(shop, {"evt_73": 73, "evt_timeless": 73})

    with shop.app.app_context():
        shop.db.session.execute(
            sa.text(f"UPDATE {TABLE} SET processed_at = NULL WHERE event_id = 'evt_timeless'")
        )
        shop.db.session.commit()

    assert cleanup(shop) == 1
    assert shop.recorded() == ["evt_timeless"]


def test_nothing_to_delete(shop: Shop) -> None:
    assert cleanup(shop) == 0


def test_dry_run_counts_and_deletes_nothing(shop: Shop) -> None:
    fill(shop, "old", 30, 73)
    fill(shop, "new", 5, 71)

    with shop.app.app_context():
        assert guard_of(shop).cleanup(RETENTION, dry_run=True) == 30

    assert count(shop) == 35


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> c.Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


SESSION_IN_TOKYO = {
    "sqlite": {},
    "postgresql": {"options": "-c timezone=Asia/Tokyo"},
    "mariadb": {"init_command": "SET time_zone = '+09:00'"},
}


@pytest.mark.usefixtures("in_tokyo")
def test_time_zones_do_not_matter(database_url: str) -> None:
    url = sa.make_url(database_url)
    tokyo = url.update_query_dict(SESSION_IN_TOKYO[url.get_backend_name()])
    shop = Shop(tokyo.render_as_string(hide_password=False))
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop, Shop(database_url) as elsewhere:
        shop.deliver("evt_delivered")
        insert(elsewhere, {"evt_71": 71, "evt_73": 73})

        assert cleanup(shop) == 1
        assert shop.recorded() == ["evt_71", "evt_delivered"]


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_processed_at_is_in_utc(dialect: str, request: pytest.FixtureRequest) -> None:
    url = sa.make_url(make_database(dialect, request)).update_query_dict(SESSION_IN_TOKYO[dialect])
    shop = Shop(url.render_as_string(hide_password=False))
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop:
        shop.deliver()

        with shop.app.app_context():
            model = shop.webhooks.model
            assert model is not None
            (processed_at,) = shop.db.session.scalars(sa.select(model.processed_at))
            shop.db.session.remove()

        age = dt.datetime.now(dt.UTC).replace(tzinfo=None) - processed_at
        assert abs(age) < dt.timedelta(seconds=60)


# -------------------------------------------------------------------- batches


def test_every_batch_is_committed_by_itself(shop: Shop) -> None:
    fill(shop, "old", 25, 73)
    left: list[tuple[int, int]] = []

    assert cleanup(shop, 10, lambda deleted: left.append((deleted, count(shop)))) == 25
    assert left == [(10, 15), (10, 5), (5, 0)]


def test_quick_batches_grow(database_url: str) -> None:
    batches: list[int] = []

    with Shop(database_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 60}) as shop:
        fill(shop, "old", 60_000, 1_000, apart=30)

        with shop.app.app_context():
            assert guard_of(shop).cleanup(RETENTION, progress=batches.append) == 60_000

    assert batches == [5_000, 10_000, 20_000, 25_000]


def test_ranges_of_times_are_small_enough_for_the_index(mariadb_database_url: str) -> None:
    batches: list[int] = []

    with Shop(mariadb_database_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 60}) as shop:
        fill(shop, "a_new", 25_000, 1)
        fill(shop, "old", 60_000, 1_000, apart=30)

        with shop.app.app_context():
            assert guard_of(shop).cleanup(RETENTION, progress=batches.append) == 60_000

    assert batches == [5_000, 10_000, 20_000, 20_000, 5_000]


def deletes_of(shop: Shop) -> list[str]:
    statements: list[str] = []

    with shop.app.app_context():

        @sa.event.listens_for(shop.db.engine, "before_cursor_execute")
        def execute(connection: object, cursor: object, text: str, *_: object) -> None:
            if "DELETE" in text:
                statements.append(text)

    return statements


def test_table_of_which_much_is_expired_is_walked_over(mariadb_shop: Shop) -> None:
    fill(mariadb_shop, "evt_a", 300, 90, apart=60)
    fill(mariadb_shop, "evt_b", 300, 1)
    fill(mariadb_shop, "evt_c", 300, 90, apart=60)
    statements = deletes_of(mariadb_shop)

    assert cleanup(mariadb_shop, 400) == 600
    assert count(mariadb_shop) == count(mariadb_shop, "evt_b") == 300
    assert len(statements) == 3
    assert all("event_id" in statement for statement in statements)


def test_table_of_which_little_is_expired_is_not_walked_over(mariadb_shop: Shop) -> None:
    fill(mariadb_shop, "evt_a", 20, 95, apart=60)
    fill(mariadb_shop, "evt_b", 3_000, 1)
    fill(mariadb_shop, "evt_c", 300, 90, apart=60)
    statements = deletes_of(mariadb_shop)

    assert cleanup(mariadb_shop, 400) == 320
    assert ["event_id" in statement for statement in statements] == [True, False]


@pytest.mark.parametrize("size", [20, 2_000])
def test_delivery_in_flight_is_not_waited_for(mariadb_shop: Shop, size: int) -> None:
    """Its record lies among the expired ones, and is locked."""
    fill(mariadb_shop, "evt_a", size, 90, apart=1)
    fill(mariadb_shop, "evt_c", size, 90, apart=1)
    cleaner = threading.Thread(target=cleanup, args=(mariadb_shop,))

    with mariadb_shop._observer.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO {TABLE} VALUES ('evt_b', 'x.y', NOW())"))
        cleaner.start()
        cleaner.join(30)
        assert not cleaner.is_alive()

    assert mariadb_shop.recorded() == ["evt_b"]


def test_slow_batches_do_not_grow(database_url: str) -> None:
    batches: list[int] = []

    with Shop(database_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 0.002}) as shop:
        fill(shop, "old", 15_000, 1_000, apart=60)
        cleanup(shop, 100_000, batches.append)

    assert batches == [5_000, 5_000, 5_000]


def test_size_of_batches_follows_their_time() -> None:
    size = _batch.BatchSize(100_000, 1)
    sizes = []

    for deleted, seconds in [(5_000, 0.1), (10_000, 0.8), (12_500, 1.25), (3, 0.1), (10_000, 9)]:
        size.learn(deleted, seconds)
        sizes.append(size.now)

    assert sizes == [10_000, 12_500, 10_000, 10_000, 5_000]


def test_waiting_for_the_lock_makes_no_batch_smaller(sqlite_url: str) -> None:
    batches: list[int] = []
    holder = sa.create_engine(sqlite_url, poolclass=sa.NullPool)

    with Shop(sqlite_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 4}) as shop:
        fill(shop, "old", 15_000, 1_000, apart=60)
        cleaner = threading.Thread(target=cleanup, args=(shop, 100_000, batches.append))

        with holder.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            cleaner.start()
            time.sleep(2.5)

        cleaner.join(10)

    assert batches == [5_000, 10_000]


def test_cache_is_large_during_a_batch_only(sqlite_url: str) -> None:
    before, during = 1234, []

    with Shop(sqlite_url) as shop:
        insert(shop, {"evt_73": 73})

        with shop.app.app_context():
            engine = shop.db.engine

        @sa.event.listens_for(engine, "connect")
        def connect(connection: sqlite3.Connection, record: object) -> None:
            connection.execute(f"PRAGMA cache_size = {before}")

        @sa.event.listens_for(engine, "before_cursor_execute")
        def execute(connection: object, cursor: sqlite3.Cursor, text: str, *_: object) -> None:
            if text.startswith("DELETE"):
                during.append(cache_size(cursor))

        engine.dispose()
        assert cleanup(shop) == 1
        assert during[-1] == _batch._CACHE

        with engine.connect() as connection:
            assert cache_size(connection.connection.cursor()) == before


def cache_size(cursor: t.Any) -> int:
    return int(cursor.execute("PRAGMA cache_size").fetchone()[0])


def test_every_look_finds_the_next_records(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cleanup, "_LOOK_AHEAD", 10)
    fill(shop, "same", 25, 90)
    fill(shop, "apart", 25, 80, apart=60)
    fill(shop, "new", 25, 71)

    assert cleanup(shop, 4) == 50
    assert count(shop) == count(shop, "new") == 25


def test_record_that_is_made_anew_meanwhile_is_kept(shop: Shop) -> None:
    fill(shop, "old", 20, 73)
    shop.webhooks.on(TYPE)(lambda event: None)
    anew: list[str] = []

    def process_again(deleted: int) -> None:
        if not anew:
            anew.extend(shop.recorded())

            with shop.app.app_context():
                for event_id in anew:
                    guard_of(shop).forget(event_id)
                    shop.webhooks.process(Event(id=event_id, type=TYPE))

    assert cleanup(shop, 5, process_again) == 5
    assert len(anew) == 15
    assert shop.recorded() == anew


@contextlib.contextmanager
def locked(shop: Shop, pattern: str) -> c.Iterator[None]:
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)
    lock = sa.text(f"SELECT 1 FROM {TABLE} WHERE event_id LIKE :pattern FOR UPDATE")

    with engine.begin() as connection:
        connection.execute(lock, {"pattern": pattern}).all()
        yield


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_records_that_others_hold_are_left_to_them(
    dialect: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")
    monkeypatch.setattr(_cleanup, "_LOOK_AHEAD", 10)
    fill(shop, "held", 12, 90)
    fill(shop, "free", 12, 95)

    with locked(shop, "held%"):
        assert cleanup(shop) == 12

    assert count(shop, "held") == 12
    assert cleanup(shop) == 12


def test_locked_database_is_tried_again(sqlite_url: str) -> None:
    options = {"connect_args": {"timeout": 0.05}}
    holder = sa.create_engine(sqlite_url, poolclass=sa.NullPool)

    with Shop(sqlite_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        insert(shop, {"evt_73": 73})
        cleaner = threading.Thread(target=cleanup, args=(shop,))

        with holder.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            cleaner.start()
            time.sleep(0.3)
            assert count(shop) == 1

        cleaner.join(10)
        assert count(shop) == 0


# --------------------------------------------------------- beside deliveries


class Deliveries:
    """Delivers one event after the other from a thread, until the block ends."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.statuses: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))

    def __enter__(self) -> Deliveries:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            event_id = f"evt_{len(self.statuses)}"
            self.statuses.append(self.shop.deliver(event_id).status_code)


class Statements:
    """The seconds that each statement of a cleanup takes, and not those of deliveries beside it."""

    def __init__(self, shop: Shop) -> None:
        self.seconds: list[tuple[float, str]] = []

        with shop.app.app_context():
            engine = shop.db.engine

        sa.event.listen(engine, "before_cursor_execute", self._before)
        sa.event.listen(engine, "after_cursor_execute", self._after)

    def _before(self, connection: sa.Connection, *_: object) -> None:
        connection.info["started"] = time.perf_counter()

    def _after(self, connection: sa.Connection, cursor: object, text: str, *_: object) -> None:
        if text.startswith("DELETE") or "LIMIT" in text:
            self.seconds.append((time.perf_counter() - connection.info["started"], text))

    def slowest(self) -> tuple[float, str]:
        """The slowest but two: whatever stalls a busy machine does so once in a while."""
        return sorted(self.seconds)[-3]


def test_a_million_records(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    fill(shop, "old", 900_000, 1_000, apart=0.001)
    fill(shop, "new", 100_000, 71, apart=0.001)
    statements = Statements(shop)
    batches: list[int] = []

    with Deliveries(shop) as deliveries:
        assert cleanup(shop, 1000, batches.append) == 900_000

    assert batches == [1000] * 900
    assert statements.slowest() < (1,)
    assert len(deliveries.statuses) > 100
    assert set(deliveries.statuses) == {200}
    assert count(shop, "old") == 0
    assert count(shop) == 100_000 + len(deliveries.statuses)


def test_records_of_one_moment_beside_an_old_transaction(postgresql_shop: Shop) -> None:
    """Nothing that is deleted can be purged meanwhile, and every look begins at the same entry."""
    shop = postgresql_shop
    fill(shop, "old", 200_000, 80)
    statements = Statements(shop)
    reader = sa.create_engine(shop.url, poolclass=sa.NullPool, isolation_level="REPEATABLE READ")

    with reader.connect() as connection:
        connection.exec_driver_sql(f"SELECT 1 FROM {TABLE} LIMIT 1")
        assert cleanup(shop) == 200_000

    looks = [seconds for seconds, text in statements.seconds if "LIMIT" in text]
    assert len(looks) <= 200_000 / _cleanup._LOOK_AHEAD + 4
    assert statements.slowest() < (1,)


def test_deliveries_go_on_meanwhile(shop: Shop) -> None:
    fill(shop, "old", 20_000, 80)

    with Deliveries(shop) as deliveries:
        time.sleep(0.1)
        assert cleanup(shop, 200) == 20_000

    unavailable = {503} if shop.url.startswith("sqlite") else set()
    assert {200} <= set(deliveries.statuses) <= {200} | unavailable
    assert count(shop) == deliveries.statuses.count(200)


# ------------------------------------------------------------- two processes


def start_cleanup(shop: Shop, folder: pathlib.Path, batch_size: int) -> subprocess.Popen[str]:
    def heed_interrupts() -> None:
        # A test run in the background of a shell ignores them, and so would its children.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        flask_command("sangho", "cleanup", "--batch-size", str(batch_size)),
        cwd=write_app(folder),
        env=environment(shop.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def test_two_cleanups_at_once(shop: Shop, tmp_path: pathlib.Path) -> None:
    fill(shop, "old", 20_000, 80)
    fill(shop, "new", 1_000, 71)
    cleanups = [start_cleanup(shop, tmp_path, 100) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in cleanups]

    assert [stderr for _, stderr in outputs] == ["", ""]
    assert sum(int(stdout.split()[1]) for stdout, _ in outputs) == 20_000
    assert count(shop) == count(shop, "new") == 1_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_cleanup_is_finished_by_the_next(
    shop: Shop, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    fill(shop, "old", 20_000, 80)
    fill(shop, "new", 1_000, 71)

    with start_cleanup(shop, tmp_path, 20) as process:
        while count(shop, "old") == 20_000:
            assert process.poll() is None
            time.sleep(0.01)

        process.send_signal(number)
        process.communicate(timeout=60)

    assert process.returncode == (1 if number is signal.SIGINT else -signal.SIGKILL)
    assert 0 < count(shop, "old") < 20_000
    assert flask(tmp_path, shop.url, "sangho", "cleanup").returncode == 0
    assert count(shop) == count(shop, "new") == 1_000
