"""A handler's first transaction has no savepoint: whatever ends it, the claim holds."""

from __future__ import annotations

import collections.abc as c
import contextlib
import threading
import time

import pytest
import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from flask_sangho_webhooks import Discard, Event
from flask_sangho_webhooks.guards import _claim

from .support import Shop, TYPE


@contextlib.contextmanager
def statements(shop: Shop) -> c.Iterator[list[str]]:
    """The first words of what is sent to the database."""
    sent: list[str] = []

    def note(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        sent.append(" ".join(statement.split()[:2]))

    with shop.app.app_context():
        engine = shop.db.engine

    sa.event.listen(engine, "before_cursor_execute", note)

    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def test_new_event_needs_no_savepoint(shop: Shop) -> None:
    shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
    assert shop.deliver("evt_1").status_code == 200

    with statements(shop) as sent:
        assert shop.deliver("evt_2").status_code == 200

    # On PostgreSQL, who watches the statements sees the timeout of the claim.
    others = [words for words in sent if not words.startswith("SELECT set_config")]
    assert len(others) == 2, sent
    assert others[1] == "INSERT INTO"
    assert shop.recorded() == ["evt_1", "evt_2"]


def test_what_comes_after_a_commit_is_in_a_savepoint(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("kept")
        shop.db.session.commit()
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()

    with statements(shop) as sent:
        assert shop.deliver().status_code == 200

    assert [words.split()[0] for words in sent].count("SAVEPOINT") == 1
    assert shop.grants() == ["kept"]
    assert shop.recorded() == ["evt_1"]


def end_by_rollback(shop: Shop) -> None:
    shop.db.session.rollback()


def end_by_remove(shop: Shop) -> None:
    shop.db.session.remove()


def end_by_close(shop: Shop) -> None:
    shop.db.session.close()


def end_by_reset(shop: Shop) -> None:
    shop.db.session().reset()


def end_by_closing_the_transaction(shop: Shop) -> None:
    transaction = shop.db.session().get_transaction()
    assert transaction is not None
    transaction.close()


def end_by_an_error(shop: Shop) -> None:
    shop.grant("undone")

    with pytest.raises(sa_exc.IntegrityError):
        shop.db.session.flush()

    shop.db.session.rollback()


ENDS = [
    end_by_rollback,
    end_by_remove,
    end_by_close,
    end_by_reset,
    end_by_closing_the_transaction,
    end_by_an_error,
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("go_on", [True, False])
def test_work_that_was_not_committed_is_undone(
    end: c.Callable[[Shop], None], go_on: bool, shop: Shop
) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        end(shop)

        if go_on:
            shop.grant("kept")

    assert shop.deliver().json == {"received": True}
    assert shop.grants() == ["kept"] * go_on
    assert shop.recorded() == ["evt_1"]
    assert shop.deliver().json == {"received": True, "duplicate": True}


@pytest.mark.parametrize("end", ENDS)
def test_failure_after_the_rollback_leaves_nothing(
    end: c.Callable[[Shop], None], shop: Shop
) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        end(shop)
        shop.grant("kept")
        shop.db.session.commit()
        raise RuntimeError

    assert shop.deliver().status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


def record_elsewhere(shop: Shop, event: Event) -> None:
    assert shop.webhooks.model is not None

    with shop._observer.begin() as connection:
        _claim.claim(connection, shop.webhooks.model.__table__, event, 1)
        connection.execute(sa.insert(shop.Grant).values(note="by another run"))


@pytest.mark.parametrize("swallow", [True, False])
@pytest.mark.parametrize("go_on", [True, False])
def test_another_run_is_faster_after_the_rollback(swallow: bool, go_on: bool, shop: Shop) -> None:
    r"""
    ===========================  ==================================
    first run                    second run
    ===========================  ==================================
    claim; grant; rollback()
    \                            claim; grant; COMMIT → 200
    grant → claim: not ours
    503, nothing written
    ===========================  ==================================
    """

    swallowed: tuple[type[Exception], ...] = (Exception,) if swallow else ()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()
        record_elsewhere(shop, event)

        with contextlib.suppress(*swallowed):
            if go_on:
                shop.grant("too late")
                shop.db.session.flush()

    answer = shop.deliver()

    if swallow and go_on:
        assert answer.status_code == 500  # the session tells that its flush has failed
    else:
        assert answer.status_code == 503
        assert answer.json is not None
        assert answer.json["error"] == "in_progress"

    assert shop.grants() == ["by another run"]
    assert shop.recorded() == ["evt_1"]
    assert shop.deliver().json == {"received": True, "duplicate": True}


def test_rollback_of_the_connection_after_a_commit_is_no_success(shop: Shop) -> None:
    """What the handler believes to be committed is gone: the event must run again."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        connection = shop.db.session.connection()
        shop.grant("committed")
        shop.db.session.commit()
        connection.rollback()

    assert shop.deliver().status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


def test_rollback_of_the_connection_is_no_success(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("flushed")
        shop.db.session.flush()
        shop.db.session.connection().rollback()

    assert shop.deliver().status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


@pytest.mark.parametrize("by", ["connection", "get_bind"])
def test_commit_of_the_connection_is_refused(by: str, shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("flushed")
        shop.db.session.flush()
        connection = getattr(shop.db.session, by)()
        connection.commit()

    assert shop.deliver().status_code == 500
    assert shop.grants() == []
    assert shop.recorded() == []


def test_rollback_does_not_undo_an_event_processed_inside(shop: Shop) -> None:
    inner = Event(id="evt_inner", type="webhook.test")

    @shop.webhooks.on("webhook.test")
    def inner_handler(event: Event) -> None:
        shop.grant("inner")

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.webhooks.process(inner)
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()

    assert shop.deliver().status_code == 200
    assert shop.grants() == ["inner"]
    assert shop.recorded() == ["evt_1", "evt_inner"]


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_handler_goes_on_after_its_connection_was_lost(
    dialect: str, request: pytest.FixtureRequest
) -> None:
    shop: Shop = request.getfixturevalue(f"{dialect}_shop")
    own_id = "pg_backend_pid()" if dialect == "postgresql" else "connection_id()"
    kill = "SELECT pg_terminate_backend({})" if dialect == "postgresql" else "KILL {}"

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        victim = shop.db.session.execute(sa.text(f"SELECT {own_id}")).scalar()

        with shop._observer.connect() as connection:
            connection.execute(sa.text(kill.format(victim)))

        with pytest.raises(sa_exc.DBAPIError):
            shop.db.session.execute(sa.text("SELECT 1"))

        shop.db.session.rollback()
        shop.grant("kept")

    assert shop.deliver().status_code == 200
    assert shop.grants() == ["kept"]
    assert shop.recorded() == ["evt_1"]


# ------------------------------------------------------- more than one session


def insert(shop: Shop, note: str) -> sa.Insert:
    return sa.insert(shop.Grant).values(note=note)


def test_rollback_takes_the_savepoint_of_another_session(shop: Shop) -> None:
    """Without its savepoint, the other session's rollback would undo nothing."""

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        other = shop.db.session.session_factory()
        shop.grant("of the first")
        shop.db.session.flush()
        other.execute(insert(shop, "of the other"))
        shop.db.session.rollback()

        with contextlib.suppress(Exception):
            other.execute(insert(shop, "after"))
            other.rollback()

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_session_that_began_later_takes_what_the_first_wrote(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        other = shop.db.session.session_factory()
        shop.grant("before")
        shop.db.session.flush()
        other.execute(sa.select(shop.Grant.note)).all()
        shop.grant("inside of the other's savepoint")
        shop.db.session.flush()
        other.close()
        shop.db.session.commit()

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_reading_in_an_app_context_of_its_own(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("before")
        shop.db.session.flush()

        with shop.app.app_context():
            assert shop.db.session.scalars(sa.select(shop.Grant.note)).all() == ["before"]

        shop.grant("after")

    assert shop.deliver().json == {"received": True}
    assert (shop.grants(), shop.recorded()) == (["after", "before"], ["evt_1"])


@pytest.mark.parametrize("write", [True, False])
def test_async_handler_with_a_session_for_each_thread(write: bool, database_url: str) -> None:
    """What it has executed is committed, and that it has only read undoes nothing."""
    options = {"scopefunc": threading.get_ident}

    with Shop(database_url, session_options=options) as shop:

        @shop.webhooks.on(TYPE)
        async def handler(event: Event) -> None:
            statement = insert(shop, "async") if write else sa.select(shop.Grant.note)
            shop.db.session.execute(statement)

        @shop.webhooks.on("*")
        def second(event: Event) -> None:
            shop.grant("second")

        assert shop.deliver().json == {"received": True}
        assert shop.grants() == ["async"] * write + ["second"]
        assert shop.recorded() == ["evt_1"]


# ------------------------------------------ behind the back of the transaction


def test_savepoint_of_a_handler_on_the_connection(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        savepoint = shop.db.session.connection().begin_nested()
        shop.grant("committed")
        shop.db.session.commit()
        savepoint.rollback()

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_discard_undoes_what_was_begun_on_the_connection(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        connection = shop.db.session.connection()
        connection.rollback()
        connection.execute(insert(shop, "undone"))
        raise Discard

    assert shop.deliver().json == {"received": True, "discarded": True}
    assert (shop.grants(), shop.recorded()) == ([], ["evt_1"])


def test_in_memory_database_is_used_beside_the_session() -> None:
    """All use the one connection, and give it back with a rollback."""
    with Shop("sqlite://") as shop:

        @shop.webhooks.on(TYPE)
        def handler(event: Event) -> None:
            shop.grant("lost")
            shop.db.session.flush()

            with shop.db.engine.connect() as connection:
                connection.execute(sa.select(shop.Grant.note)).all()

        assert shop.deliver().status_code == 500


OR_ROLLBACK = sa.text('INSERT OR ROLLBACK INTO "grant" (note) VALUES (:note)')


def test_database_ends_the_transaction_of_an_event_inside(sqlite_shop: Shop) -> None:
    shop = sqlite_shop

    @shop.webhooks.on("webhook.test")
    def inner_handler(event: Event) -> None:
        shop.db.session.execute(insert(shop, "inner"))
        shop.db.session.execute(OR_ROLLBACK, {"note": "inner"})

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("before")
        shop.db.session.commit()

        with contextlib.suppress(Exception):
            shop.webhooks.process(Event(id="evt_inner", type="webhook.test"))

        shop.db.session.execute(insert(shop, "after"))

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_another_run_is_faster_after_the_database_has_ended_the_transaction(
    sqlite_shop: Shop,
) -> None:
    """The record that the claim leaves is then not this run's."""
    shop = sqlite_shop

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.db.session.execute(insert(shop, "first"))

        with contextlib.suppress(sa_exc.IntegrityError):
            shop.db.session.execute(OR_ROLLBACK, {"note": "first"})

        record_elsewhere(shop, event)
        shop.db.session.execute(insert(shop, "after"))

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == (["by another run"], ["evt_1"])


def test_another_run_is_faster_after_a_deadlock(mariadb_shop: Shop) -> None:
    shop = mariadb_shop

    with shop._observer.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE pair (id INT PRIMARY KEY, n INT)")
        connection.exec_driver_sql("CREATE TABLE heavy (id INT PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO pair VALUES (1, 0), (2, 0)")

    def update(key: int) -> sa.TextClause:
        return sa.text(f"UPDATE pair SET n = n + 1 WHERE id = {key}")

    def lose_a_deadlock() -> None:
        with shop._observer.connect() as winner:
            # Whoever has written less is rolled back.
            winner.exec_driver_sql("INSERT INTO heavy SELECT seq FROM seq_1_to_3000")
            winner.execute(update(2))
            shop.db.session.execute(update(1))
            thread = threading.Thread(target=lambda: winner.execute(update(1)))
            thread.start()
            time.sleep(0.3)

            with pytest.raises(sa_exc.OperationalError, match="1213"):
                shop.db.session.execute(update(2))

            thread.join()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        lose_a_deadlock()
        record_elsewhere(shop, event)
        shop.db.session.execute(insert(shop, "after"))

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == (["by another run"], ["evt_1"])


@pytest.mark.parametrize(
    "text", ["ROLLBACK", " rollback;", "commit", "END", "BEGIN", "START TRANSACTION"]
)
def test_transaction_that_a_text_would_end(shop: Shop, text: str) -> None:
    shop.app.testing = False

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("first")
        shop.db.session.flush()
        shop.db.session.execute(sa.text(text))
        shop.grant("second")

    assert shop.deliver().status_code == 500
    assert (shop.recorded(), shop.grants()) == ([], [])


def test_transaction_that_is_rolled_back_below_the_session(shop: Shop) -> None:
    """The next statement begins another, without the claim."""
    shop.app.testing = False

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        connection = shop.db.session.connection()
        connection.exec_driver_sql("ROLLBACK")
        shop.grant("lost")

    assert shop.deliver().status_code == 500
    assert (shop.recorded(), shop.grants()) == ([], [])


def test_rollback_to_a_savepoint_as_a_text(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("kept")
        shop.db.session.flush()
        shop.db.session.execute(sa.text("SAVEPOINT mine"))
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.execute(sa.text("ROLLBACK TO SAVEPOINT mine"))

    assert shop.deliver().status_code == 200
    assert (shop.recorded(), shop.grants()) == (["evt_1"], ["kept"])


def test_nested_event_right_after_a_rollback(shop: Shop) -> None:
    shop.webhooks.on("invoice.paid")(lambda event: shop.grant(event.id))

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant("undone")
        shop.db.session.flush()
        shop.db.session.rollback()
        shop.webhooks.process(Event(id="evt_2", type="invoice.paid"))

    assert shop.deliver().status_code == 200
    assert (shop.recorded(), shop.grants()) == (["evt_1", "evt_2"], ["evt_2"])
