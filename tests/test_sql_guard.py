"""Rule 4 of the design: whatever a handler does with ``db.session``, its effects and the record of
the event are committed together or not at all. Looked at from a second connection.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import threading
import typing as t

import pytest
import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm

from flask_sangho_webhooks import (
    ConfigError,
    Discard,
    Event,
    GuardUnavailable,
    Outcome,
    SQLGuard,
    WebhookError,
)

from .support import event_body, Shop, TYPE

Handler = c.Callable[[Event], None]


def fails(shop: Shop, event_id: str = "evt_1") -> None:
    """Deliver an event whose handler raises; nothing may stay."""
    response = shop.deliver(event_id)
    assert response.status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


def succeeds(shop: Shop, grants: list[str]) -> None:
    """Deliver an event twice; the first run stays, the second is a duplicate."""
    assert shop.deliver().json == {"received": True}
    assert shop.deliver().json == {"received": True, "duplicate": True}
    assert shop.grants() == grants
    assert shop.recorded() == ["evt_1"]


def test_commit_then_raise_leaves_nothing(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("early")
        shop.db.session.commit()
        raise RuntimeError

    fails(shop)


class Interruption(BaseException):
    """As gevent's Timeout, or the SystemExit of a worker that has taken too long."""


@pytest.mark.parametrize("error", [Interruption, OSError])
def test_rollback_that_is_interrupted_leaves_no_claim_in_the_pool(
    database_url: str, error: type[BaseException]
) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    errors: list[BaseException] = [error()]

    def interrupt(connection: sa.Connection) -> None:
        if errors:
            raise errors.pop()

    with Shop(database_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            if errors:
                raise RuntimeError

            shop.grant(event.id)

        with shop.app.app_context():
            sa.event.listen(shop.db.engine, "rollback", interrupt)

        shop.app.config["PROPAGATE_EXCEPTIONS"] = True

        with pytest.raises(error):
            shop.deliver()

        succeeds(shop, ["evt_1"])


def test_commit_is_not_seen_before_the_handler_returns(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    during: list[tuple[list[str], list[str]]] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("early")
        shop.db.session.commit()
        during.append((shop.grants(), shop.recorded()))

    succeeds(shop, ["early"])
    assert during == [([], [])]


def test_rollback_then_return_is_recorded_once(shop: Shop) -> None:
    runs = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        runs.append(event.id)
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()

    succeeds(shop, [])
    assert runs == ["evt_1"]


def test_rollback_then_more_work(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()
        shop.grant("kept")

    succeeds(shop, ["kept"])


def test_two_commits(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("first")
        shop.db.session.commit()
        shop.grant("second")
        shop.db.session.commit()

    succeeds(shop, ["first", "second"])


def test_swallowed_integrity_error_is_no_duplicate(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("once")
        shop.db.session.commit()
        shop.grant("once")

        try:
            shop.db.session.commit()
        except sa_exc.IntegrityError:
            shop.db.session.rollback()

        shop.grant("later")

    succeeds(shop, ["later", "once"])


def test_swallowed_integrity_error_in_a_savepoint(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("once")
        shop.db.session.flush()

        try:
            with shop.db.session.begin_nested():
                shop.grant("once")
        except sa_exc.IntegrityError:
            pass

        shop.grant("later")

    succeeds(shop, ["later", "once"])


def test_raised_integrity_error_is_no_duplicate(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("twice")
        shop.grant("twice")

    fails(shop)
    fails(shop)


def test_remove(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.remove()
        shop.grant("kept")

    succeeds(shop, ["kept"])


def test_remove_then_raise(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("early")
        shop.db.session.commit()
        shop.db.session.remove()
        raise RuntimeError

    fails(shop)


def test_close_then_more_work(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.close()
        shop.grant("kept")

    succeeds(shop, ["kept"])


def test_with_begin(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        with shop.db.session.begin():
            shop.grant("kept")

    succeeds(shop, ["kept"])


def test_with_begin_that_raises(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        with shop.db.session.begin():
            shop.grant("undone")
            raise RuntimeError

    fails(shop)


def test_core_statements_join(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.db.session.execute(sa.insert(shop.Grant).values(note="core"))
        shop.db.session.commit()
        raise RuntimeError

    fails(shop)


def test_second_handler_fails(shop: Shop) -> None:
    broken = [True]

    @shop.webhooks.on(TYPE)
    def first(event: Event) -> None:
        shop.grant("first")
        shop.db.session.commit()

    @shop.webhooks.on("payment_intent.*")
    def second(event: Event) -> None:
        if broken:
            raise RuntimeError

        shop.grant("second")

    fails(shop)
    broken.clear()
    succeeds(shop, ["first", "second"])


@pytest.mark.parametrize("step", ["add", "flush", "commit", "rollback"])
def test_discard_undoes_everything_and_records(shop: Shop, step: str) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")

        if step == "rollback":
            shop.db.session.flush()

        if step != "add":
            getattr(shop.db.session, step)()

        raise Discard("never")

    assert shop.deliver().json == {"received": True, "discarded": True}
    assert shop.deliver().json == {"received": True, "duplicate": True}
    assert shop.grants() == []
    assert shop.recorded() == ["evt_1"]


def test_swallowed_error_without_rollback_is_not_a_success(postgresql_shop: Shop) -> None:
    """PostgreSQL answers the COMMIT of an aborted transaction with a ROLLBACK, without an error."""
    shop = postgresql_shop

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("lost")
        shop.db.session.flush()

        with contextlib.suppress(sa_exc.ProgrammingError):
            shop.db.session.execute(sa.text("SELECT missing"))

    fails(shop)


def test_swallowed_error_behind_the_session_is_not_a_success(postgresql_shop: Shop) -> None:
    shop = postgresql_shop

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        connection = shop.db.session.connection()
        shop.db.session.commit()

        with contextlib.suppress(sa_exc.ProgrammingError):
            connection.execute(sa.text("SELECT missing"))

    shop.app.testing = True

    with pytest.raises(WebhookError, match=r"db\.session\.rollback\(\)"):
        shop.deliver()

    assert shop.recorded() == []


@pytest.mark.parametrize("dialect", ["sqlite", "mariadb"])
def test_transaction_rolled_back_by_the_server_is_not_a_success(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    """A deadlock on MariaDB, or a full disk on SQLite, ends the whole transaction. What a handler
    writes after swallowing that error is in a new one, which must not be committed.
    """
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        driver = shop.db.session.connection().connection.driver_connection
        assert driver is not None
        shop.db.session.commit()
        driver.rollback()  # what the server did
        shop.grant("without a claim")
        shop.db.session.commit()

    assert shop.deliver().status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


def test_next_request_of_the_worker_is_clean(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.commit()

        if event.id == "evt_bad":
            raise RuntimeError

    @shop.app.post("/grant")
    def grant() -> str:
        shop.grant("by the app")
        shop.db.session.commit()
        return type(shop.db.session()).__name__

    assert shop.deliver("evt_bad").status_code == 500
    assert shop.app.test_client().post("/grant").text == "Session"
    assert shop.deliver("evt_good").status_code == 200
    assert shop.grants() == ["by the app", "evt_good"]


def test_session_of_a_failed_handler_does_not_leak_into_after_request(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        raise RuntimeError

    @shop.app.after_request
    def commit(response: t.Any) -> t.Any:
        shop.db.session.commit()
        return response

    fails(shop)


def test_pending_objects_of_before_request_are_left_as_they_were(shop: Shop) -> None:
    pending: list[t.Any] = []

    @shop.app.before_request
    def audit() -> None:
        pending.append(shop.Grant(note=f"audit {len(pending)}"))
        shop.db.session.add(pending[-1])

    @shop.app.after_request
    def check(response: t.Any) -> t.Any:
        assert pending[-1] in shop.db.session.new
        shop.db.session.commit()
        return response

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        assert not shop.db.session.new
        shop.grant(event.id)
        shop.db.session.commit()
        shop.db.session.rollback()

    assert shop.deliver().status_code == 200
    assert shop.grants() == ["audit 0", "evt_1"]


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_flushed_work_of_before_request_is_neither_committed_nor_lost(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")
    during: list[list[str]] = []

    @shop.app.before_request
    def audit() -> None:
        shop.grant("audit")
        shop.db.session.flush()

    @shop.app.after_request
    def commit(response: t.Any) -> t.Any:
        during.append(shop.grants())
        shop.db.session.commit()
        return response

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        pass

    assert shop.deliver().status_code == 200
    assert during == [[]]
    assert shop.grants() == ["audit"]


def test_flushed_work_of_before_request_on_sqlite_says_what_is_wrong(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Shop(sqlite_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 0.1}) as shop:

        @shop.app.before_request
        def audit() -> None:
            shop.grant("audit")
            shop.db.session.flush()

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            pass

        assert shop.deliver().status_code == 503
        assert "holds uncommitted work" in caplog.text


def test_core_statement_of_before_request_is_not_lost(shop: Shop) -> None:
    @shop.app.before_request
    def audit() -> None:
        shop.db.session.execute(sa.insert(shop.Grant).values(note="audit"))

    @shop.app.after_request
    def commit(response: t.Any) -> t.Any:
        shop.db.session.commit()
        return response

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        pass

    assert shop.deliver().status_code == 200
    assert shop.grants() == ["audit"]


@pytest.mark.parametrize("size", [1, 4])
def test_one_delivery_uses_one_connection(database_url: str, size: int) -> None:
    """A pool of N serves N deliveries at once, after a hook that has read from the database."""
    options = {"poolclass": sa.QueuePool, "pool_size": size, "max_overflow": 0, "pool_timeout": 5}
    barrier = threading.Barrier(size)
    config = {"SQLALCHEMY_ENGINE_OPTIONS": options}

    with Shop(database_url, config=config) as shop:

        @shop.app.before_request
        def read() -> None:
            shop.db.session.scalars(sa.select(shop.Grant)).all()
            barrier.wait(10)

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant(event.id)

        statuses: list[int] = []
        threads = [
            threading.Thread(
                target=lambda i=i: statuses.append(shop.deliver(f"evt_{i}").status_code)
            )
            for i in range(size)
        ]

        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join()

        assert statuses == [200] * size


def test_threads_do_not_share_a_joined_session(postgresql_shop: Shop) -> None:
    """While one thread dispatches, another one's session is its own, with its own connection."""
    shop = postgresql_shop
    running, release = threading.Event(), threading.Event()
    pids: dict[str, int] = {}

    def pid() -> int:
        return t.cast(int, shop.db.session.scalar(sa.text("SELECT pg_backend_pid()")))

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        pids["handler"] = pid()
        running.set()
        assert release.wait(10)

    thread = threading.Thread(target=shop.deliver)
    thread.start()
    assert running.wait(10)

    with shop.app.app_context():
        pids["other"] = pid()
        assert type(shop.db.session()).__name__ == "Session"

    release.set()
    thread.join()
    assert pids["handler"] != pids["other"]


def test_nested_app_context_joins(shop: Shop) -> None:
    """Rendering a mail in a context of its own must not wait for the event's own lock."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("outer")
        shop.db.session.flush()

        with shop.app.app_context():
            shop.grant("inner")
            shop.db.session.commit()

        raise RuntimeError

    fails(shop)


def test_nested_process_commits_with_the_outer_event(shop: Shop) -> None:
    broken = [True]

    @shop.webhooks.on("invoice.paid")
    def inner(event: Event) -> None:
        shop.grant(event.id)

    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        invoice = Event(id="evt_inner", type="invoice.paid")
        assert shop.webhooks.process(invoice) is Outcome.PROCESSED
        assert shop.webhooks.process(invoice) is Outcome.DUPLICATE
        shop.grant(event.id)

        if broken:
            raise RuntimeError

    fails(shop)
    broken.clear()
    assert shop.deliver().status_code == 200
    assert shop.grants() == ["evt_1", "evt_inner"]
    assert shop.recorded() == ["evt_1", "evt_inner"]


def test_other_databases_keep_their_own_transaction(
    postgresql_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = f"sqlite:///{tmp_path_factory.mktemp('other') / 'other.sqlite3'}"

    with Shop(postgresql_url, config={"SQLALCHEMY_BINDS": {"other": other}}) as shop:

        class Note(shop.db.Model):  # type: ignore[name-defined, misc]
            __bind_key__ = "other"
            id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)

        with shop.app.app_context():
            shop.db.create_all("other")

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant(event.id)
            shop.db.session.add(Note())

        succeeds(shop, ["evt_1"])

        with shop.app.app_context():
            assert shop.db.session.scalar(sa.select(sa.func.count()).select_from(Note)) == 1


def test_session_options_of_the_app_are_kept(sqlite_url: str) -> None:
    with Shop(sqlite_url, session_options={"expire_on_commit": False}) as shop:
        seen: list[bool] = []

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            seen.append(shop.db.session().expire_on_commit)

        assert shop.deliver().status_code == 200
        assert seen == [False]


def test_inside_an_outer_transaction_bound_by_engine(shop: Shop) -> None:
    """The test recipe that puts a connection in the place of the engine and rolls it back."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.commit()

        if event.id == "evt_bad":
            raise RuntimeError

    with shop.app.app_context():
        engines = t.cast(dict[t.Any, t.Any], shop.db.engines)
        engine = engines[None]

        with engine.connect() as connection:
            outer = connection.begin()
            engines[None] = connection

            try:
                assert shop.deliver("evt_bad").status_code == 500
                assert shop.deliver().json == {"received": True}
                assert shop.deliver().json == {"received": True, "duplicate": True}
                assert shop.db.session.scalars(sa.select(shop.Grant.note)).all() == ["evt_1"]
                shop.db.session.remove()
            finally:
                outer.rollback()
                engines[None] = engine

    assert shop.grants() == []
    assert shop.recorded() == []


def test_inside_an_outer_transaction_with_a_replaced_session(shop: Shop) -> None:
    """The test recipe that replaces ``db.session`` by one that is bound to a connection."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.commit()

    with shop.app.app_context(), shop.db.engine.connect() as connection:
        outer = connection.begin()
        original = shop.db.session
        maker: t.Any = sa_orm.sessionmaker(connection, join_transaction_mode="create_savepoint")
        shop.db.session = sa_orm.scoped_session(maker)

        try:
            assert shop.deliver().json == {"received": True}
            assert shop.deliver().json == {"received": True, "duplicate": True}
            assert shop.db.session.scalars(sa.select(shop.Grant.note)).all() == ["evt_1"]
            shop.db.session.remove()
        finally:
            outer.rollback()
            shop.db.session = original

    assert shop.grants() == []
    assert shop.recorded() == []


def test_missing_table_says_how_to_create_it(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)

    with shop.app.app_context():
        shop.webhooks.model.__table__.drop(shop.db.engine)  # type: ignore[union-attr]

    shop.app.testing = True

    with pytest.raises(ConfigError, match="flask sangho upgrade"):
        shop.deliver()


def test_in_memory_database_is_not_shared_between_runs() -> None:
    """All threads use the one connection of SQLite in memory; a duplicate must not take the claim
    of a run in progress for a committed one.
    """
    running, release = threading.Event(), threading.Event()

    with Shop("sqlite://", config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 0.1}) as shop:

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            running.set()
            assert release.wait(10)
            raise RuntimeError

        thread = threading.Thread(target=shop.deliver)
        thread.start()
        assert running.wait(10)
        assert shop.deliver().status_code == 503
        release.set()
        thread.join()
        assert shop.deliver().status_code == 500


def test_ids_that_differ_in_case_are_two_events(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id + "!")

    @shop.webhooks.on(TYPE)
    def count(event: Event) -> None:
        runs.append(event.id)

    runs: list[str] = []
    assert shop.deliver("evt_a").status_code == 200

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shop, "grant", lambda note: None)
        assert shop.deliver("evt_A").json == {"received": True}

    assert runs == ["evt_a", "evt_A"]


def test_constraint_of_a_users_column_is_no_duplicate(shop: Shop) -> None:
    """Only the id decides: another violated constraint must not make an event look processed."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)

    with shop.app.app_context(), shop.db.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(
                "CREATE UNIQUE INDEX one_type ON processed_webhook_events (event_type)"
            )
        else:
            connection.exec_driver_sql(
                "ALTER TABLE processed_webhook_events ADD CONSTRAINT one_type UNIQUE (event_type)"
            )

    assert shop.deliver("evt_1").status_code == 200
    assert shop.deliver("evt_2").status_code == 500
    assert shop.recorded() == ["evt_1"]


def test_seen_and_forget(shop: Shop) -> None:
    runs: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        runs.append(event.id)

    shop.deliver()

    with shop.app.app_context():
        guard = shop.webhooks.endpoint().guard
        assert guard.seen("evt_1")
        assert not guard.seen("evt_2")
        assert guard.forget("evt_1")
        assert not guard.forget("evt_1")
        assert not guard.seen("evt_1")

    shop.deliver()
    assert runs == ["evt_1", "evt_1"]


def test_guard_with_settings_of_its_own_ignores_the_configuration(sqlite_shop: Shop) -> None:
    config = sqlite_shop.webhooks.endpoint
    guard = SQLGuard(sqlite_shop.db, lock_timeout=7)

    with sqlite_shop.app.app_context():
        assert guard.bind(config().config).lock_timeout == 7


def test_process_without_a_request(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)

    event = Event.from_body(event_body())

    with shop.app.app_context():
        assert shop.webhooks.process(event) is Outcome.PROCESSED
        assert shop.webhooks.process(event) is Outcome.DUPLICATE

    assert shop.grants() == ["evt_1"]


def test_unreachable_database() -> None:
    shop = Shop("postgresql+psycopg://postgres@127.0.0.1:1/postgres")

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        raise AssertionError

    with shop.app.app_context(), pytest.raises(GuardUnavailable):
        shop.webhooks.process(Event(id="evt_1", type=TYPE))
