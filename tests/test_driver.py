"""The claim over the driver's own cursor: the same answers, and nobody who watches misses it."""

from __future__ import annotations

import collections.abc as c
import gc
import logging
import signal
import sqlite3
import threading
import time
import typing as t
import uuid

import pytest
import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask_sqlalchemy.record_queries import get_recorded_queries

from flask_sangho_webhooks import Event, ProcessedWebhookEventMixin, SanghoWebhooks
from flask_sangho_webhooks.guards import _claim, _driver
from flask_sangho_webhooks.guards._claim import Claim

from .support import Shop, TYPE
from .test_races import CONNECTION_ID, KILL

EVENT = Event(id="evt_1", type=TYPE)
TABLE = "processed_webhook_events"
CLAIM = f"INSERT INTO {TABLE}"


def table_of(shop: Shop) -> sa.Table:
    assert shop.webhooks.model is not None
    table: sa.Table = shop.webhooks.model.__table__
    return table


@pytest.fixture
def through_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are left to SQLAlchemy."""
    statements: list[str] = []
    execute = _driver._execute

    def noted(connection: sa.Connection, statement: t.Any, parameters: t.Any) -> t.Any:
        statements.append(str(statement.compile(connection)))
        return execute(connection, statement, parameters)

    monkeypatch.setattr(_driver, "_execute", noted)
    return statements


def test_claim_and_duplicate_need_only_the_driver(
    shop: Shop, through_sqlalchemy: list[str]
) -> None:
    shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))

    for event_id in ("evt_1", "evt_2"):
        assert shop.deliver(event_id).json == {"received": True}
        assert shop.deliver(event_id).json == {"received": True, "duplicate": True}

    assert through_sqlalchemy == []


def test_delivery_leaves_nothing_to_the_garbage_collector(shop: Shop) -> None:
    """What is in a cycle of references stays in memory until the collector comes, and slows all
    that runs meanwhile.
    """
    shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
    shop.deliver("evt_0")
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    try:
        assert shop.deliver().json == {"received": True}
        gc.collect()
        kinds = (Event, sa.Connection, sa_orm.Session, sa_orm.SessionTransaction)
        assert [thing for thing in gc.garbage if isinstance(thing, kinds)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def listener(statements: list[str]) -> c.Callable[..., None]:
    def listen(connection: t.Any, cursor: t.Any, statement: str, *_: object) -> None:
        statements.append(statement)

    return listen


def test_listener_on_the_connection_sees_the_claim(shop: Shop) -> None:
    statements: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop.app.app_context():
        sa.event.listen(
            shop.db.engine,
            "engine_connect",
            lambda connection: sa.event.listen(
                connection, "before_cursor_execute", listener(statements)
            ),
        )

    shop.deliver()
    assert sum(CLAIM in statement for statement in statements) == 1


def test_listener_that_executes_for_the_dialect_sees_the_claim(shop: Shop) -> None:
    statements: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: None)

    def note(cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "do_execute", note)

    shop.deliver()
    assert sum(CLAIM in statement for statement in statements) == 1


@pytest.mark.parametrize("on_all_engines", [False, True])
def test_listener_sees_the_claim(shop: Shop, on_all_engines: bool) -> None:
    statements: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop.app.app_context():
        target = sa.Engine if on_all_engines else shop.db.engine

    shop.deliver("evt_0")
    listen = listener(statements)
    sa.event.listen(target, "before_cursor_execute", listen)

    try:
        assert shop.deliver().json == {"received": True}
        assert shop.deliver().json == {"received": True, "duplicate": True}
    finally:
        sa.event.remove(target, "before_cursor_execute", listen)

    assert sum(CLAIM in statement for statement in statements) == 2


def test_log_shows_the_claim(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.webhooks.on(TYPE)(lambda event: None)

    with caplog.at_level(logging.INFO, "sqlalchemy.engine"):
        shop.deliver()

    assert sum(CLAIM in record.getMessage() for record in caplog.records) == 1


def test_recorded_queries_hold_the_claim(database_url: str) -> None:
    statements: list[str | None] = []

    with Shop(database_url, config={"SQLALCHEMY_RECORD_QUERIES": True}) as shop:
        shop.webhooks.on(TYPE)(lambda event: None)

        @shop.app.after_request
        def note(response: t.Any) -> t.Any:
            statements.extend(query.statement for query in get_recorded_queries())
            return response

        shop.deliver()

    assert sum(CLAIM in str(statement) for statement in statements) == 1


def test_other_schema_of_the_execution_options(postgresql_url: str) -> None:
    options = {"execution_options": {"schema_translate_map": {None: "shop"}}}

    with Shop(postgresql_url) as plain, plain._observer.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA shop")

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        shop.webhooks.on(TYPE)(lambda event: None)
        assert shop.deliver().json == {"received": True}

        with shop._observer.connect() as connection:
            count = "SELECT COUNT(*) FROM shop.processed_webhook_events"
            assert connection.exec_driver_sql(count).scalar() == 1


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_restart_of_the_server_costs_one_delivery(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    """All connections of the pool are lost at once: the first one that notices drops them all."""
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop.app.app_context():
        engine = shop.db.engine
        connections = [engine.connect() for _ in range(3)]
        numbers = [each.exec_driver_sql(CONNECTION_ID[dialect]).scalar() for each in connections]

        for each in connections:
            each.close()

    with shop._observer.connect() as observer:
        for number in numbers:
            observer.exec_driver_sql(KILL[dialect].format(number))

    time.sleep(0.1)
    assert shop.deliver("evt_1").status_code == 503
    assert [shop.deliver(f"evt_{n}").status_code for n in range(2, 6)] == [200] * 4


def test_error_listener_hears_of_a_missing_table(shop: Shop) -> None:
    seen: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: None)
    shop.app.testing = False

    with shop.app.app_context(), shop.db.engine.begin() as connection:
        table_of(shop).drop(connection)
        sa.event.listen(
            shop.db.engine,
            "handle_error",
            lambda context: seen.append(str(context.statement)),
        )

    assert shop.deliver().status_code == 500
    assert sum(CLAIM in statement for statement in seen) == 1


def test_claim_that_fails_once_on_sqlite_is_not_committed_early(sqlite_url: str) -> None:
    """Without an isolation level, sqlite3 begins no transaction when the claim is executed again,
    and would commit it at once: the event would be lost with its handler's error.
    """
    shop = Shop(sqlite_url)
    denied: list[object] = []
    is_armed = False

    def authorize(action: int, table: str | None, *_: object) -> int:
        if is_armed and not denied and (action, table) == (sqlite3.SQLITE_INSERT, TABLE):
            denied.append(table)
            return sqlite3.SQLITE_DENY

        return sqlite3.SQLITE_OK

    def set_up(driver: sqlite3.Connection, record: object) -> None:
        driver.isolation_level = None
        driver.set_authorizer(authorize)

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "connect", set_up)

    @shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        raise RuntimeError

    with shop:
        is_armed = True
        shop.app.config["PROPAGATE_EXCEPTIONS"] = False
        assert shop.deliver().status_code == 500
        assert (denied, shop.recorded()) == ([TABLE], [])


def test_what_a_listener_sets_for_the_transaction_outlasts_a_cancelled_claim(
    postgresql_shop: Shop,
) -> None:
    """Such as the tenant of row-level security."""
    shop = postgresql_shop
    tenants: list[object] = []
    answers: list[int] = []
    tenant = sa.text("SELECT current_setting('shop.tenant', true)")
    shop.webhooks.on(TYPE)(lambda event: tenants.append(shop.db.session.scalar(tenant)))

    def set_tenant(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL shop.tenant = 'paris'")

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "begin", set_tenant)

    with shop._observer.begin() as locking, shop._observer.begin() as observer:
        locking.exec_driver_sql(f"LOCK TABLE {TABLE}")
        thread = threading.Thread(target=lambda: answers.append(shop.deliver().status_code))
        thread.start()
        cancel_claim(observer)

    thread.join()

    if answers == [503]:
        assert shop.deliver().status_code == 200

    assert tenants == ["paris"]


def cancel_claim(observer: sa.Connection) -> None:
    """Cancel the statement that waits for a lock, as soon as there is one."""
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    end = time.monotonic() + 10

    while observer.exec_driver_sql(cancel).first() is None:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_claim_that_runs_into_a_statement_timeout_does_not_wait_twice(
    postgresql_url: str, through_sqlalchemy: list[str]
) -> None:
    options = {"connect_args": {"options": "-c statement_timeout=300"}}
    config = {"SQLALCHEMY_ENGINE_OPTIONS": options, "SANGHO_WEBHOOK_LOCK_TIMEOUT": 30}

    with Shop(postgresql_url, config=config) as shop, shop._observer.begin() as observer:
        shop.webhooks.on(TYPE)(lambda event: None)
        observer.exec_driver_sql(f"INSERT INTO {TABLE} VALUES ('evt_1', 'x', now())")
        assert shop.deliver().status_code == 503
        assert through_sqlalchemy == []
        observer.rollback()
        assert shop.deliver().json == {"received": True}


class Interruption(BaseException):
    """As gevent's Timeout, or the SystemExit of a worker that has taken too long."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_connection_of_an_interrupted_claim_is_dropped(postgresql_shop: Shop) -> None:
    """Its reply may yet come, and some drivers take it for that to the next statement, be it the
    ROLLBACK.
    """
    shop = postgresql_shop
    shop.webhooks.on(TYPE)(lambda event: None)
    dropped: list[BaseException | None] = []

    def interrupt(*_: object) -> None:
        raise Interruption

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "invalidate", lambda *values: dropped.append(values[-1]))

    previous = signal.signal(signal.SIGALRM, interrupt)

    try:
        with shop._observer.begin() as observer:
            insert = f"INSERT INTO {TABLE} VALUES ('evt_1', 'x', now())"
            observer.exec_driver_sql(insert)
            signal.setitimer(signal.ITIMER_REAL, 0.3)

            with pytest.raises(Interruption):
                shop.deliver()

            observer.rollback()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    assert dropped == [None]  # not because a ROLLBACK failed
    assert shop.deliver_after_loss().json == {"received": True}


class NotedString(sa.types.TypeDecorator[str]):
    """A type of the user's own, which stores the ids in another way."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return value if value is None else f"id of {value}"

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return value if value is None else value.removeprefix("id of ")


def test_columns_and_types_of_a_users_model(database_url: str) -> None:
    shop = Shop(database_url)

    class Delivered(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "delivered 100%"

        event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(NotedString(60), primary_key=True)
        node: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(40), default="paris")
        run: sa_orm.Mapped[str] = sa_orm.mapped_column(
            sa.String(40), default=lambda: uuid.uuid4().hex
        )

    other = SanghoWebhooks(shop.db, name="other", path="/other", model=Delivered)
    other.on(TYPE)(lambda event: shop.grant(event.id))
    shop.app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_0123456789abcdef"
    shop.app.register_blueprint(other.blueprint)

    with shop:
        for event_id in ("evt_1", "evt_2"):
            assert shop.deliver(event_id, path="/other").json == {"received": True}
            assert shop.deliver(event_id, path="/other").json == {
                "received": True,
                "duplicate": True,
            }

        with shop._observer.connect() as connection:
            columns: list[sa.ColumnClause[t.Any]] = [
                sa.column(name) for name in ("event_id", "node", "run")
            ]
            table = sa.table("delivered 100%", *columns)
            rows = connection.execute(sa.select(*columns).select_from(table)).all()

    assert {(row.event_id, row.node) for row in rows} == {
        ("id of evt_1", "paris"),
        ("id of evt_2", "paris"),
    }
    assert len({row.run for row in rows}) == 2


def test_name_of_the_table_is_quoted(database_url: str) -> None:
    """In PostgreSQL's claim it is also a part of the lock's name, as a string."""
    shop = Shop(database_url)

    class Delivered(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "it's 100% (delivered)"

    with shop:
        for expected in (Claim.OURS, Claim.DUPLICATE):
            with shop._observer.begin() as connection:
                table = t.cast(sa.Table, Delivered.__table__)
                assert _claim.claim(connection, table, EVENT, 1) is expected
