"""PostgreSQL's drivers. With psycopg the claim is one round trip, with the same answers, in a
transaction as psycopg would begin it; with others, and for those who watch, it is several.
"""

from __future__ import annotations

import collections.abc as c
import itertools
import re
import time
import typing as t

import psycopg
import pytest
import sqlalchemy as sa
import sqlalchemy.orm as sa_orm

from flask_sangho_webhooks import Event, ProcessedWebhookEventMixin, SanghoWebhooks
from flask_sangho_webhooks.guards._psycopg import _without_prepared

from .proxy import Proxy
from .support import prepare_at_once, SECRET, Shop, TYPE

TABLE = "processed_webhook_events"
DUPLICATE = {"received": True, "duplicate": True}


@pytest.fixture(params=["psycopg", "prepared", "psycopg2", "watched"])
def shop(request: pytest.FixtureRequest, postgresql_url: str) -> c.Iterator[Shop]:
    """A shop that reaches its database in one way or another."""
    driver = "psycopg2" if request.param == "psycopg2" else "psycopg"
    url = sa.make_url(postgresql_url).set(drivername=f"postgresql+{driver}")
    config = {"SANGHO_WEBHOOK_LOCK_TIMEOUT": 0.3}
    shop = Shop(url.render_as_string(hide_password=False), config=config)

    if request.param == "watched":
        with shop.app.app_context():
            sa.event.listen(shop.db.engine, "after_cursor_execute", lambda *_: None)

    if request.param == "prepared":
        prepare_at_once(shop)

    with shop:
        yield shop


def set_default(shop: Shop, setting: str, value: str) -> None:
    """Set what a setting is on the connections to come."""
    name = sa.make_url(shop.url).database

    with shop._observer.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET {setting} = {value}")

    with shop.app.app_context():
        shop.db.engine.dispose()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What psycopg has waited for the server to answer."""
    waited: list[str] = []
    wait = psycopg.Connection.wait

    def noting(generator: t.Any) -> c.Generator[t.Any, t.Any, t.Any]:
        try:
            state = generator.send(None)
            waited.append(str(generator))

            while True:
                state = generator.send((yield state))
        except StopIteration as end:
            return end.value

    def noted(self: t.Any, generator: t.Any, *args: t.Any, **options: t.Any) -> t.Any:
        return wait(self, noting(generator), *args, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", noted)
    return waited


def test_round_trips(postgresql_shop: Shop, trips: list[str]) -> None:
    """The claim, the handler's insert and COMMIT. For a duplicate, the claim, and then a look at
    the table that rolls back.
    """
    shop = postgresql_shop
    shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
    shop.deliver("evt_0")

    for answer, number in (({"received": True}, 3), (DUPLICATE, 2)):
        trips.clear()
        assert shop.deliver().json == answer
        assert len(trips) == number, trips


def uses_of_claim(shop: Shop) -> list[int]:
    """How often the prepared claim has been executed on the connection, delivery by delivery; 0 if
    there is none.
    """
    uses: list[int] = []
    count = sa.text(
        "SELECT sum(generic_plans + custom_plans) FROM pg_prepared_statements"
        f" WHERE from_sql AND statement LIKE '%INTO {TABLE}%'"
    )

    @shop.webhooks.on("*")
    def handler(event: Event) -> None:
        uses.append(int(shop.db.session.scalar(count) or 0))
        shop.grant(event.id)

    return uses


def deliver_new(shop: Shop, number: int) -> None:
    """Deliver so many new events, one by one, and then the same once more."""
    ids = [f"evt_{len(shop.recorded()) + position:03}" for position in range(number)]

    for expected in ({"received": True}, DUPLICATE):
        for event_id in ids:
            assert shop.deliver(event_id).json == expected

    assert shop.recorded() == shop.grants()


def test_claim_is_prepared_when_psycopg_would(postgresql_shop: Shop) -> None:
    """From the sixth time on, if it has prepared something itself."""
    uses = uses_of_claim(postgresql_shop)
    deliver_new(postgresql_shop, 9)
    assert uses == [0, 0, 0, 0, 0, 0, 1, 2, 3]


def test_claim_is_not_prepared_where_nothing_is_to_be(postgresql_url: str) -> None:
    """Such as behind a pooler."""
    options = {"connect_args": {"prepare_threshold": None}}

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        uses = uses_of_claim(shop)
        deliver_new(shop, 8)

    assert uses == [0] * 8


def test_prepared_claim_that_psycopg_drops(postgresql_shop: Shop, trips: list[str]) -> None:
    """With its own statements, after a rollback. The server would say that it is not there."""
    shop = postgresql_shop
    prepare_at_once(shop)
    uses = uses_of_claim(shop)
    deliver_new(shop, 3)

    with shop.app.app_context():
        shop.db.session.execute(sa.text("SELECT 1"))
        shop.db.session.rollback()

    trips.clear()
    assert shop.deliver("evt_x").json == {"received": True}
    assert len(trips) == 4  # with that of uses_of_claim
    deliver_new(shop, 3)
    assert uses == [1, 2, 3, 0, 1, 2, 3]


def test_prepared_claim_where_the_table_becomes_another(postgresql_shop: Shop) -> None:
    """By a migration, or by the search_path of another tenant."""
    shop = postgresql_shop
    prepare_at_once(shop)
    uses = uses_of_claim(shop)
    deliver_new(shop, 3)

    with shop._observer.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE copy (LIKE {TABLE} INCLUDING ALL)")
        connection.exec_driver_sql(f"DROP TABLE {TABLE}")
        connection.exec_driver_sql(f"ALTER TABLE copy RENAME TO {TABLE}")
        connection.exec_driver_sql("CREATE SCHEMA tenant")
        connection.exec_driver_sql(f"CREATE TABLE tenant.{TABLE} (LIKE {TABLE} INCLUDING ALL)")

    assert shop.deliver("evt_x").json == {"received": True}
    assert shop.deliver("evt_x").json == DUPLICATE

    with shop.app.app_context():
        shop.db.session.execute(sa.text("SET search_path = tenant, public"))
        shop.db.session.commit()

    assert shop.deliver("evt_y").json == {"received": True}
    assert shop.deliver("evt_y").json == DUPLICATE
    assert shop.recorded() == ["evt_x"]

    with shop._observer.connect() as connection:
        ids = connection.exec_driver_sql(f"SELECT event_id FROM tenant.{TABLE}").scalars().all()

    assert ids == ["evt_y"]
    assert uses == [1, 2, 3, 7, 9]


@pytest.mark.parametrize("is_watched", [False, True])
def test_table_that_comes_to_be_earlier_in_the_search_path(
    postgresql_url: str, is_watched: bool
) -> None:
    """A prepared statement would stay with the other one, where it was planned. Where somebody
    watches, SQLAlchemy executes the claim, and psycopg would prepare it.
    """
    options = {"connect_args": {"options": "-c search_path=tenant,public"}}

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        with shop._observer.begin() as connection:
            connection.exec_driver_sql("CREATE SCHEMA tenant")

        if is_watched:
            with shop.app.app_context():
                sa.event.listen(shop.db.engine, "after_cursor_execute", lambda *_: None)

        prepare_at_once(shop)
        uses = uses_of_claim(shop)
        deliver_new(shop, 3)
        # psycopg drops what it has prepared with the rollback of a duplicate that it is told of.
        assert shop.deliver("evt_w").json == {"received": True}
        assert uses == ([0, 0, 0, 0] if is_watched else [1, 2, 3, 7])

        with shop._observer.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE tenant.{TABLE} (LIKE {TABLE} INCLUDING ALL)")
            connection.exec_driver_sql(f"INSERT INTO tenant.{TABLE} VALUES ('evt_x', 'x', now())")

        assert shop.deliver("evt_x").json == DUPLICATE
        assert shop.deliver("evt_y").json == {"received": True}
        assert shop.deliver("evt_y").json == DUPLICATE
        assert len(shop.recorded()) == 4


def test_prepared_claim_beside_many_statements(postgresql_shop: Shop) -> None:
    """psycopg keeps the last hundred; ours is none of them."""
    shop = postgresql_shop
    prepare_at_once(shop)
    uses = uses_of_claim(shop)
    numbers = itertools.count()

    def execute(event: Event) -> None:
        for _ in range(statements):
            shop.db.session.execute(sa.text(f"SELECT {next(numbers)}"))

    shop.webhooks.on("*")(execute)
    statements = 30
    deliver_new(shop, 8)
    assert uses == [1, 2, 3, 4, 5, 6, 7, 8]
    # So many that we cannot say any more whether ours is there.
    uses.clear()
    statements = 130
    deliver_new(shop, 3)
    assert uses == [17, 17, 17]

    with shop.app.app_context():
        assert shop.db.engine not in _without_prepared  # which an error of the server would do


class Pooler(Proxy):
    """Says, as a pooler does, that the process behind the connection is another one."""

    def reply(self, data: bytes) -> bytes:
        return re.sub(
            rb"K\x00\x00\x00\x0c....", b"K\x00\x00\x00\x0c\x00\x00\x00\x01", data, flags=re.DOTALL
        )


def test_claim_is_not_prepared_behind_a_pooler(postgresql_url: str) -> None:
    """It may lead to another connection in each transaction."""
    if sa.make_url(postgresql_url).host is None:
        pytest.skip("needs a server on TCP")

    with Pooler(postgresql_url) as pooler:
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        config = {"SQLALCHEMY_ENGINE_OPTIONS": {"connect_args": plain}}

        with Shop(pooler.url, config=config) as shop:
            uses = uses_of_claim(shop)
            prepare_at_once(shop)
            deliver_new(shop, 8)

    assert uses == [0] * 8


def execute_unseen(shop: Shop, query: str) -> str:
    """Execute something on the connection in the pool, unseen by psycopg. Returns a value, or
    nothing.
    """
    with shop.app.app_context(), shop.db.engine.connect() as connection:
        driver: t.Any = connection.connection.driver_connection
        return (driver.pgconn.exec_(query.encode()).get_value(0, 0) or b"").decode()


def test_prepared_claim_that_is_gone(postgresql_shop: Shop) -> None:
    """Somebody has dropped it, or a pooler has put another connection in its place."""
    prepare_at_once(postgresql_shop)
    uses = uses_of_claim(postgresql_shop)
    deliver_new(postgresql_shop, 3)
    name = execute_unseen(postgresql_shop, "SELECT name FROM pg_prepared_statements WHERE from_sql")
    execute_unseen(postgresql_shop, f"DEALLOCATE {name}")
    deliver_new(postgresql_shop, 3)
    assert uses == [1, 2, 3, 0, 0, 0]


def test_prepared_claim_that_is_there_already(postgresql_shop: Shop) -> None:
    """A pooler has given us a connection that another client has used."""
    prepare_at_once(postgresql_shop)
    uses = uses_of_claim(postgresql_shop)
    deliver_new(postgresql_shop, 3)
    query = "SELECT statement FROM pg_prepared_statements WHERE from_sql"
    # The message that it was in.
    statements = execute_unseen(postgresql_shop, query).split(";")
    (prepare,) = (statement for statement in statements if statement.startswith("PREPARE"))

    with postgresql_shop.app.app_context():
        postgresql_shop.db.engine.dispose()

    execute_unseen(postgresql_shop, prepare)
    deliver_new(postgresql_shop, 3)
    assert uses == [1, 2, 3, 0, 0, 0]


@pytest.mark.parametrize("standard", ["on", "off"])
def test_odd_ids(shop: Shop, standard: str) -> None:
    """Any printable character may be in an id. The server may take a backslash for an escape."""
    ids = ["it's", "a\\", "\\');DROP_TABLE_grant;--", "100%", "%(event_id)s", "%s", '"', "$1", ";"]
    set_default(shop, "standard_conforming_strings", standard)
    shop.webhooks.on("*")(lambda event: shop.grant(event.id))

    for event_id in ids:
        assert shop.deliver(event_id, "it's.100%\\").json == {"received": True}
        assert shop.deliver(event_id, "it's.100%\\").json == DUPLICATE

    assert sorted(shop.recorded()) == sorted(shop.grants()) == sorted(ids)

    with shop._observer.connect() as connection:
        types = connection.exec_driver_sql(f"SELECT DISTINCT event_type FROM {TABLE}").all()

    assert [tuple(row) for row in types] == [("it's.100%\\",)]


def test_name_of_the_table_in_the_clients_encoding(postgresql_url: str) -> None:
    options = {"connect_args": {"client_encoding": "LATIN1"}}
    config = {"SQLALCHEMY_ENGINE_OPTIONS": options, "SANGHO_OTHER_SECRET": SECRET}
    shop = Shop(postgresql_url, config=config)

    class Delivered(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "événements"
        event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50), primary_key=True)

    other = SanghoWebhooks(
        shop.db, name="other", path="/other", model=Delivered, config_prefix="SANGHO_OTHER_"
    )
    other.on(TYPE)(lambda event: shop.grant(event.id))
    shop.app.register_blueprint(other.blueprint)

    with shop:
        assert shop.deliver(path="/other").json == {"received": True}
        assert shop.deliver(path="/other").json == DUPLICATE


class Tracer(psycopg.Cursor[t.Any]):
    """As the tracers of the driver are."""

    statements: t.ClassVar[list[str]] = []

    def execute(self, query: t.Any, *args: t.Any, **options: t.Any) -> t.Any:
        self.statements.append(str(query).split(" (")[0])
        return super().execute(query, *args, **options)


def test_tracer_of_the_driver_sees_the_claim(postgresql_url: str) -> None:
    options = {"connect_args": {"cursor_factory": Tracer}}

    with Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        shop.webhooks.on(TYPE)(lambda event: None)
        shop.deliver("evt_0")

        for _ in range(2):
            Tracer.statements.clear()
            assert shop.deliver().status_code == 200
            assert f"INSERT INTO {TABLE}" in Tracer.statements


def test_transaction_that_takes_too_long(postgresql_url: str) -> None:
    """The server ends it, and the connection with it."""
    options = {"connect_args": {"options": "-c transaction_timeout=200ms"}}
    shop = Shop(postgresql_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options})

    with Shop(postgresql_url), shop._observer.begin() as observer:  # the first makes the tables
        version = observer.exec_driver_sql("SHOW server_version_num").scalar_one()

        if int(version) < 170000:
            pytest.skip("needs PostgreSQL 17")

        shop.webhooks.on(TYPE)(lambda event: None)
        observer.exec_driver_sql(f"INSERT INTO {TABLE} VALUES ('evt_1', 'x', now())")
        assert shop.deliver().status_code == 503

    with shop.app.app_context():
        shop.db.engine.dispose()


def shown(shop: Shop, setting: str) -> list[str]:
    """What a setting is in the handler, delivery by delivery."""
    seen: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        seen.append(shop.db.session.scalar(sa.text(f"SHOW {setting}")))

    return seen


def test_lock_timeout_that_changes_between_two_deliveries(shop: Shop) -> None:
    """We set it back to what it was at the delivery before, which may not be what it is."""
    seen = shown(shop, "lock_timeout")
    values = ["7s", "7s", "8s", "0", "9s"]

    for number, value in enumerate(values):
        with shop.app.app_context():
            shop.db.session.execute(sa.text(f"SET lock_timeout = '{value}'"))
            shop.db.session.commit()

        assert shop.deliver(f"evt_{number}").json == {"received": True}
        assert shop.deliver(f"evt_{number}").json == DUPLICATE

        with shop.app.app_context():
            assert shop.db.session.scalar(sa.text("SHOW lock_timeout")) == value

    assert seen == values


@pytest.mark.parametrize(
    ("attribute", "value", "setting", "expected"),
    [
        (
            "isolation_level",
            psycopg.IsolationLevel.REPEATABLE_READ,
            "transaction_isolation",
            "repeatable read",
        ),
        ("read_only", False, "transaction_read_only", "off"),
        ("deferrable", True, "transaction_deferrable", "on"),
    ],
)
def test_transaction_is_as_the_connection_wants_it(
    postgresql_url: str, attribute: str, value: object, setting: str, expected: str
) -> None:
    options = {"connect_args": {"options": "-c default_transaction_read_only=on"}}

    with Shop(postgresql_url):
        pass  # the tables are there

    shop = Shop(
        postgresql_url,
        config={"SQLALCHEMY_ENGINE_OPTIONS": options if attribute == "read_only" else {}},
    )
    seen = shown(shop, setting)

    with shop.app.app_context():
        engine = shop.db.engine
        sa.event.listen(engine, "connect", lambda driver, _: setattr(driver, attribute, value))
        assert shop.deliver().json == {"received": True}
        assert shop.deliver().json == DUPLICATE
        engine.dispose()

    assert seen == [expected]


def test_transaction_that_a_listener_has_begun(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    seen = shown(shop, "lock_timeout")
    notices: list[object] = []

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '6s'")
        driver: t.Any = connection.connection.driver_connection
        driver.add_notice_handler(notices.append)

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "begin", begin)

    assert shop.deliver().json == {"received": True}
    assert shop.deliver().json == DUPLICATE
    assert seen == ["6s"]
    assert notices == []  # such as that there is a transaction already


def test_wait_for_a_lock_on_the_table(shop: Shop) -> None:
    """Such as that of a migration."""
    set_default(shop, "statement_timeout", "'5s'")
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop._observer.begin() as connection:
        connection.exec_driver_sql(f"LOCK TABLE {TABLE}")
        started = time.monotonic()
        assert shop.deliver().status_code == 503
        assert time.monotonic() - started < 2

    assert shop.deliver().json == {"received": True}


class Masked(str):
    def __str__(self) -> str:
        return "***"


def test_strings_that_print_otherwise(postgresql_shop: Shop) -> None:
    """As the members of many an enumeration do; only a script or a worker has such."""
    shop = postgresql_shop
    shop.webhooks.on(TYPE)(lambda event: shop.grant(str.__str__(event.id)))

    with shop.app.app_context():
        outcomes = [
            shop.webhooks.process(Event(id=Masked(event_id), type=Masked(TYPE))).value
            for event_id in ("evt_1", "evt_1", "evt_2")
        ]

        types = shop.db.session.scalars(sa.text(f"SELECT event_type FROM {TABLE}")).all()

    assert outcomes == ["processed", "duplicate", "processed"]
    assert types == [TYPE, TYPE]
    assert shop.recorded() == shop.grants() == ["evt_1", "evt_2"]
