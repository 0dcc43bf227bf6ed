"""Sessions, engines and handlers that are set up or used in a way the guard does not expect. Each
either works or fails loudly, with nothing recorded: an event is never lost by a duplicate's 200.
"""

from __future__ import annotations

import contextvars
import threading
import typing as t

import pytest
import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask import g
from flask_sqlalchemy.session import Session

from flask_sangho_webhooks import ConfigError, Event, Outcome, WebhookError
from flask_sangho_webhooks.guards._session import SessionFactory

from .support import Shop, TYPE

RECEIVED = {"received": True}


# ------------------------------------------------------------------ the commit


def test_failed_commit_leaves_no_transaction_in_the_pool(shop: Shop) -> None:
    """SQLAlchemy takes a transaction for ended when its COMMIT has failed; the database does not.
    The next delivery on that connection must not see the claim as committed.
    """
    broken = [True]

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)

    with shop.app.app_context():

        @sa.event.listens_for(shop.db.engine, "commit")
        def fail(connection: sa.Connection) -> None:
            if broken:
                raise RuntimeError

    assert shop.deliver().status_code == 500
    broken.clear()
    assert shop.deliver().json == RECEIVED
    assert shop.grants() == ["evt_1"]


def test_reader_that_blocks_the_commit_of_sqlite(sqlite_url: str) -> None:
    options = {"connect_args": {"timeout": 0.1}}

    with Shop(sqlite_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant(event.id)

        with shop._observer.connect() as reader:
            reader.exec_driver_sql("BEGIN")
            reader.execute(sa.select(shop.Grant)).all()
            assert shop.deliver().status_code == 503

        assert shop.deliver().json == RECEIVED
        assert shop.grants() == ["evt_1"]


def test_commit_of_the_connection_in_a_handler_is_refused(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()
        shop.db.session.connection().commit()

    shop.app.testing = True

    with pytest.raises(WebhookError, match=r"db\.session\.commit\(\)"):
        shop.deliver()

    assert (shop.grants(), shop.recorded()) == ([], [])


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    "options",
    [{"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"autocommit": True}}],
    ids=["isolation level", "driver"],
)
def test_autocommit_is_refused(
    dialect: str, options: dict[str, t.Any], request: pytest.FixtureRequest
) -> None:
    name = "postgresql_url" if dialect == "postgresql" else "mariadb_database_url"
    url = request.getfixturevalue(name)

    with Shop(url, config={"SQLALCHEMY_ENGINE_OPTIONS": options, "TESTING": True}) as shop:
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))

        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            shop.deliver()

        assert (shop.grants(), shop.recorded()) == ([], [])


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"isolation_level": None}}],
    ids=["isolation level", "driver"],
)
def test_autocommit_of_sqlite_does_not_matter(sqlite_url: str, options: dict[str, t.Any]) -> None:
    broken = [True]

    with Shop(sqlite_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant(event.id)
            shop.db.session.commit()

            if broken:
                raise RuntimeError

        assert shop.deliver().status_code == 500
        assert (shop.grants(), shop.recorded()) == ([], [])
        broken.clear()
        assert shop.deliver().json == RECEIVED
        assert shop.grants() == ["evt_1"]


def test_begin_immediate_recipe_of_sqlite(sqlite_url: str) -> None:
    with Shop(sqlite_url) as shop:
        with shop.app.app_context():
            engine = shop.db.engine

        @sa.event.listens_for(engine, "connect")
        def connect(connection: t.Any, record: object) -> None:
            connection.isolation_level = None

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        engine.dispose()
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
        assert shop.deliver().json == RECEIVED
        assert shop.deliver().json == {"received": True, "duplicate": True}
        assert shop.grants() == ["evt_1"]


# ------------------------------------------------------------------ objects and sessions


def test_object_is_readable_after_the_commit(shop: Shop) -> None:
    """As in the README: a callback takes what it needs from the handler's object."""
    seen: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        grant = shop.Grant(note=event.id)
        shop.db.session.add(grant)
        shop.webhooks.on_commit(lambda: seen.append(grant.note))

    assert shop.deliver().json == RECEIVED
    assert seen == ["evt_1"]


@pytest.mark.parametrize("last", ["the callback", "a commit", "another handler"])
def test_object_is_readable_after_a_commit_of_the_handlers_own(last: str, shop: Shop) -> None:
    """Such a commit expires the object, and the session ends before the callback."""
    seen: list[tuple[int, str]] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        grant = shop.Grant(note=event.id)
        shop.db.session.add(grant)

        if last == "the callback":
            shop.db.session.commit()

        shop.webhooks.on_commit(lambda: seen.append((grant.id, grant.note)))

        if last == "a commit":
            shop.db.session.commit()

    @shop.webhooks.on(TYPE)
    def neighbour(event: Event) -> None:
        if last == "another handler":
            shop.db.session.commit()

    assert shop.deliver().json == RECEIVED
    assert seen == [(1, "evt_1")]
    assert shop.recorded() == ["evt_1"]


def test_object_of_a_deleted_row_does_no_harm_to_a_callback(shop: Shop) -> None:
    called: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        gone, kept = shop.Grant(note="gone"), shop.Grant(note="kept")
        shop.db.session.add_all([gone, kept])
        shop.db.session.commit()
        shop.db.session.execute(sa.delete(shop.Grant.__table__).where(shop.Grant.note == "gone"))
        shop.db.session.commit()
        shop.webhooks.on_commit(lambda: called.append(kept.note))
        shop.webhooks.on_commit(lambda: called.append(gone.note))

    assert shop.deliver().json == RECEIVED
    assert called == ["kept"]
    assert (shop.grants(), shop.recorded()) == (["kept"], ["evt_1"])


def test_own_commit_shows_a_handler_what_a_statement_has_changed(shop: Shop) -> None:
    """As everywhere in SQLAlchemy. Objects are not kept as they were for the callbacks' sake."""
    seen: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        grant = shop.Grant(note="old")
        shop.db.session.add(grant)
        shop.db.session.commit()
        shop.db.session.execute(sa.update(shop.Grant.__table__).values(note="new"))
        shop.db.session.commit()
        seen.append(grant.note)
        shop.webhooks.on_commit(lambda: seen.append(grant.note))

    assert shop.deliver().json == RECEIVED
    assert seen == ["new", "new"]


def test_change_of_an_object_of_before_request_is_refused(shop: Shop) -> None:
    with shop.app.app_context():
        shop.grant("open")
        shop.db.session.commit()

    @shop.app.before_request
    def load() -> None:
        g.grant = shop.db.session.scalars(sa.select(shop.Grant)).one()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        g.grant.note = "paid"
        shop.db.session.commit()

    shop.app.testing = True

    with pytest.raises(WebhookError, match=r"db\.session\.get\(\)"):
        shop.deliver()

    assert (shop.grants(), shop.recorded()) == (["open"], [])


def test_object_of_before_request_is_readable_without_a_second_connection(
    database_url: str,
) -> None:
    options = {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 1}

    with Shop(database_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        with shop.app.app_context():
            shop.grant("tenant")
            shop.db.session.commit()

        @shop.app.before_request
        def load() -> None:
            g.tenant = shop.db.session.scalars(sa.select(shop.Grant)).first()

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant(f"{event.id} of {g.tenant.note}")

        assert shop.deliver().json == RECEIVED
        assert "evt_1 of tenant" in shop.grants()


def test_seen_needs_no_second_connection(database_url: str) -> None:
    options = {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 1}

    with (
        Shop(database_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop,
        shop.app.app_context(),
    ):
        shop.db.session.scalars(sa.select(shop.Grant)).all()
        assert not shop.webhooks.endpoint().guard.seen("evt_1")
        assert not shop.webhooks.endpoint().guard.forget("evt_1")


def test_session_made_with_options_joins(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        session = shop.db.session(expire_on_commit=False)
        session.add(shop.Grant(note=event.id))
        session.commit()
        raise RuntimeError

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_configured_options_are_kept(sqlite_shop: Shop) -> None:
    seen: list[bool] = []

    with sqlite_shop.app.app_context():
        sqlite_shop.db.session.configure(autoflush=False)

    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        seen.append(sqlite_shop.db.session().autoflush)

    sqlite_shop.deliver()
    assert seen == [False]


def test_session_that_sends_reads_to_another_engine(postgresql_url: str) -> None:
    """The claim belongs where the writes go."""
    follower = sa.create_engine(postgresql_url)

    class RoutingSession(Session):
        def get_bind(self, *args: t.Any, **kwargs: t.Any) -> t.Any:
            if self._flushing or isinstance(kwargs.get("clause"), sa.UpdateBase):
                return super().get_bind(*args, **kwargs)

            return follower

    with Shop(postgresql_url, session_options={"class_": RoutingSession}) as shop:
        broken = [True]

        @shop.webhooks.on(TYPE)
        def first(event: Event) -> None:
            shop.grant(event.id)
            shop.db.session.commit()

        @shop.webhooks.on("*")
        def second(event: Event) -> None:
            if broken:
                raise RuntimeError

        assert shop.deliver().status_code == 500
        assert (shop.grants(), shop.recorded()) == ([], [])
        broken.clear()
        assert shop.deliver().json == RECEIVED
        assert shop.grants() == ["evt_1"]

    follower.dispose()


def test_async_handler_with_a_scope_by_threads_is_no_silent_loss(shop: Shop) -> None:
    scoped = Shop(shop.url, session_options={"scopefunc": threading.get_ident})

    @scoped.webhooks.on(TYPE)
    async def handler(event: Event) -> None:
        scoped.grant(event.id)

    with scoped:
        scoped.app.testing = True

        with pytest.raises(WebhookError, match="another scope"):
            scoped.deliver()

        assert (scoped.grants(), scoped.recorded()) == ([], [])


# ------------------------------------------------------------------ handlers


def test_each_handler_may_begin_a_transaction(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def first(event: Event) -> None:
        shop.grant("first")

    @shop.webhooks.on("payment_intent.*")
    def second(event: Event) -> None:
        with shop.db.session.begin():
            shop.grant("second")

    assert shop.deliver().json == RECEIVED
    assert shop.grants() == ["first", "second"]


def test_thread_that_outlives_its_handler_is_outside(shop: Shop) -> None:
    called: list[str] = []
    release = threading.Event()
    threads: list[threading.Thread] = []

    def later() -> None:
        assert release.wait(10)
        shop.webhooks.on_commit(lambda: called.append("at once"))

        with shop.app.app_context():
            shop.grant("later")
            shop.db.session.commit()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        context = contextvars.copy_context()
        threads.append(threading.Thread(target=context.run, args=[later]))
        threads[0].start()

    assert shop.deliver().json == RECEIVED
    release.set()
    threads[0].join()
    assert called == ["at once"]
    assert shop.grants() == ["later"]


def test_rollback_does_not_reach_into_a_nested_event(shop: Shop) -> None:
    """What process() has answered stays, unless the event around it fails."""

    @shop.webhooks.on("invoice.paid")
    def inner(event: Event) -> None:
        shop.grant(event.id)

    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()
        assert shop.webhooks.process(Event(id="evt_2", type="invoice.paid")) is Outcome.PROCESSED
        shop.db.session.rollback()

    assert shop.deliver().json == RECEIVED
    assert shop.grants() == ["evt_1", "evt_2"]
    assert shop.recorded() == ["evt_1", "evt_2"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_handler_that_is_interrupted(shop: Shop, kind: type[BaseException]) -> None:
    broken = [True]

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.commit()

        if broken:
            raise kind

    with pytest.raises(kind):
        shop.deliver()

    broken.clear()
    assert (shop.grants(), shop.recorded()) == ([], [])
    assert shop.deliver().json == RECEIVED


def test_mapped_objects_need_no_registry_of_ours(sqlite_shop: Shop) -> None:
    """A session that the app makes for itself is left alone, also in a handler."""
    seen: list[str] = []

    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        with sa_orm.Session(sqlite_shop.db.engine) as session:
            seen.append(type(session).__name__)

    sqlite_shop.deliver()
    assert seen == ["Session"]


def test_binds_are_asked_of_a_session_with_the_options_of_now(sqlite_shop: Shop) -> None:
    scoped = sqlite_shop.db.session

    with sqlite_shop.app.app_context():
        factory = SessionFactory.install(scoped)
        first = factory.for_binds()
        assert factory.for_binds() is first

        scoped.configure(info={"replica": True})
        assert factory.for_binds().info == {"replica": True}
