"""A handler's first transaction has no savepoint: whatever ends it, the claim holds."""

from __future__ import annotations

import collections.abc as c
import contextlib

import pytest
import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from flask_sangho_webhooks import Event
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

    assert len(sent) == 2, sent
    assert sent[1] == "INSERT INTO"
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
