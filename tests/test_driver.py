"""The claim over the driver's own cursor: the same answers, and nobody who watches misses it."""

from __future__ import annotations

import collections.abc as c
import logging
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
CLAIM = "INSERT INTO processed_webhook_events"


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
    for expected in (Claim.OURS, Claim.DUPLICATE):
        with shop._observer.begin() as connection:
            assert _claim.claim(connection, table_of(shop), EVENT, 1) is expected

    assert through_sqlalchemy == []


def listener(statements: list[str]) -> c.Callable[..., None]:
    def listen(connection: t.Any, cursor: t.Any, statement: str, *_: object) -> None:
        statements.append(statement)

    return listen


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
    seen: list[object] = []

    with shop.app.app_context():
        engine = shop.db.engine
        sa.event.listen(engine, "handle_error", lambda context: seen.append(context.is_disconnect))
        connections = [engine.connect() for _ in range(3)]
        numbers = [each.exec_driver_sql(CONNECTION_ID[dialect]).scalar() for each in connections]

        for each in connections:
            each.close()

    with shop._observer.connect() as observer:
        for number in numbers:
            observer.exec_driver_sql(KILL[dialect].format(number))

    time.sleep(0.1)
    assert shop.deliver("evt_1").status_code == 503
    assert seen == [True]
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
