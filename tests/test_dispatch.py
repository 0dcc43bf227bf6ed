"""What waits for the commit, and the session of a guard that has none of its own."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import typing as t

import pytest
import sqlalchemy.event as sa_event

from flask_sangho_webhooks import Discard, Event, Outcome, RetryLater, SanghoWebhooks
from flask_sangho_webhooks.guards.base import Dispatch, Progress

from .support import event_body, Shop, TYPE

INNER_TYPE = "webhook.test"
INNER = Event(id="evt_inner", type=INNER_TYPE)


class SetGuard:
    """A guard that remembers events in a set, and commits to nothing else."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        if event.id in self.ids:
            return Outcome.DUPLICATE

        dispatch()
        self.ids.add(event.id)
        return Outcome.PROCESSED

    def seen(self, event_id: str) -> bool:
        return event_id in self.ids

    def forget(self, event_id: str) -> bool:
        raise NotImplementedError

    def cleanup(
        self,
        older_than: dt.timedelta,
        *,
        batch_size: int = 1000,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        raise NotImplementedError


@pytest.fixture
def shop(sqlite_shop: Shop) -> Shop:
    return sqlite_shop


# -------------------------------------------------------------------------- on_commit


def test_callbacks_run_in_order_after_the_commit(shop: Shop) -> None:
    seen: list[tuple[str, list[str], list[str]]] = []

    def look(name: str) -> c.Callable[[], None]:
        return lambda: seen.append((name, shop.grants(), shop.recorded()))

    @shop.webhooks.on(TYPE)
    def first(event: Event) -> None:
        shop.webhooks.on_commit(look("a"))
        shop.grant(event.id)
        shop.db.session.commit()
        shop.webhooks.on_commit(look("b"))
        assert seen == []

    @shop.webhooks.on(TYPE)
    def second(event: Event) -> None:
        shop.webhooks.on_commit(look("c"))

    assert shop.deliver().status_code == 200
    assert seen == [(name, ["evt_1"], ["evt_1"]) for name in "abc"]


@pytest.mark.parametrize("error", [Discard(), RetryLater(), ValueError()])
def test_no_callback_after_a_rollback(shop: Shop, error: Exception) -> None:
    called: list[str] = []

    @shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        shop.webhooks.on_commit(lambda: called.append("handler"))
        raise error

    shop.deliver()
    shop.deliver()
    assert called == []


def test_no_callback_after_a_commit_that_fails(shop: Shop) -> None:
    called: list[str] = []

    @shop.webhooks.on(TYPE)
    def same_note_twice(event: Event) -> None:
        shop.webhooks.on_commit(lambda: called.append("handler"))
        shop.grant("same")
        shop.grant("same")

    assert shop.deliver().status_code == 500
    assert called == []


def test_no_callback_for_a_duplicate(shop: Shop) -> None:
    called: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.webhooks.on_commit(lambda: called.append(event.id))

    for _ in range(2):
        assert shop.deliver().status_code == 200

    assert called == ["evt_1"]


def test_failing_callback_is_logged_and_the_others_run(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.webhooks.on_commit(lambda: 1 / 0)
        shop.webhooks.on_commit(lambda: called.append("second"))

    response = shop.deliver()

    assert (response.status_code, response.json) == (200, {"received": True})
    assert called == ["second"]
    assert shop.grants() == ["evt_1"]
    assert "ZeroDivisionError" in caplog.text


def test_callback_has_the_session_of_the_request(shop: Shop) -> None:
    def write() -> None:
        shop.grant("after")
        shop.db.session.commit()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.webhooks.on_commit(write)

    assert shop.deliver().status_code == 200
    assert shop.grants() == ["after"]


def test_callback_in_a_callback_runs_at_once(shop: Shop) -> None:
    called: list[str] = []

    def outer() -> None:
        shop.webhooks.on_commit(lambda: called.append("inner"))
        called.append("outer")

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.webhooks.on_commit(outer)

    shop.deliver()
    assert called == ["inner", "outer"]


def test_outside_a_dispatch_the_function_is_called_at_once() -> None:
    called: list[str] = []
    webhooks = SanghoWebhooks()

    webhooks.on_commit(lambda: called.append("now"))
    assert called == ["now"]

    with pytest.raises(ZeroDivisionError):
        webhooks.on_commit(lambda: 1 / 0)


def test_what_is_no_function_is_refused_at_once(shop: Shop) -> None:
    """Such as the result of one that was called by mistake."""
    errors: list[TypeError] = []

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        try:
            shop.webhooks.on_commit(t.cast(t.Any, shop.grant("called")))
        except TypeError as error:
            errors.append(error)

    assert shop.deliver().status_code == 200
    assert "on_commit() takes a function, not NoneType" in str(errors[0])


# -------------------------------------------------------------- process() in a handler


@pytest.fixture
def called(shop: Shop) -> list[str]:
    """What the callback of the inner event, and tests, append to."""
    called: list[str] = []

    @shop.webhooks.on(INNER_TYPE)
    def inner(event: Event) -> None:
        shop.grant("inner")
        shop.webhooks.on_commit(lambda: called.append(f"inner {shop.grants()}"))

    return called


def test_inner_callbacks_wait_for_the_outer_commit(shop: Shop, called: list[str]) -> None:
    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        shop.webhooks.on_commit(lambda: called.append("outer, before"))
        assert shop.webhooks.process(INNER) is Outcome.PROCESSED
        assert called == []
        shop.webhooks.on_commit(lambda: called.append("outer, after"))

    assert shop.deliver().status_code == 200
    assert called == ["outer, before", "inner ['inner']", "outer, after"]
    assert shop.recorded() == ["evt_1", "evt_inner"]


def test_inner_callbacks_go_with_the_outer_event(shop: Shop, called: list[str]) -> None:
    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        shop.webhooks.process(INNER)
        raise ValueError

    assert shop.deliver().status_code == 500
    assert called == []
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_outer_callbacks_survive_an_inner_failure(shop: Shop, called: list[str]) -> None:
    @shop.webhooks.on(INNER_TYPE)
    def fail(event: Event) -> None:
        raise ValueError

    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        shop.webhooks.on_commit(lambda: called.append("outer"))

        with pytest.raises(ValueError):  # noqa: PT011
            shop.webhooks.process(INNER)

    assert shop.deliver().status_code == 200
    assert called == ["outer"]
    assert shop.recorded() == ["evt_1"]


def test_inner_event_of_another_guard_has_committed_by_itself(shop: Shop) -> None:
    called: list[str] = []
    other = SanghoWebhooks(guard=SetGuard(), name="other")
    other.init_app(shop.app)

    @other.on(INNER_TYPE)
    def inner(event: Event) -> None:
        other.on_commit(lambda: called.append("inner"))

    @shop.webhooks.on(TYPE)
    def outer(event: Event) -> None:
        other.process(INNER)
        assert called == ["inner"]
        raise ValueError

    assert shop.deliver().status_code == 500
    assert called == ["inner"]


# --------------------------------------------------------- a guard without a database


def test_session_is_committed_whatever_the_guard(sqlite_url: str) -> None:
    with Shop(sqlite_url, guard=SetGuard()) as shop:
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))

        assert shop.deliver().status_code == 200
        assert shop.grants() == ["evt_1"]


def test_session_is_rolled_back_whatever_the_guard(sqlite_url: str) -> None:
    with Shop(sqlite_url, guard=SetGuard()) as shop:

        @shop.webhooks.on(TYPE)
        def fail(event: Event) -> None:
            shop.grant(event.id)
            shop.db.session.flush()
            raise ValueError

        with shop.app.app_context():
            with pytest.raises(ValueError):  # noqa: PT011
                shop.webhooks.process(Event.from_body(event_body()))

            shop.db.session.commit()

        assert shop.grants() == []


def test_failing_rollback_does_not_hide_the_handlers_exception(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Exception):
        pass

    @shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        def refuse(*_: object) -> None:
            raise Broken

        sa_event.listen(shop.db.session(), "after_soft_rollback", refuse)
        shop.grant(event.id)
        raise ValueError

    with shop.app.app_context(), pytest.raises(ValueError):  # noqa: PT011
        shop.webhooks.process(Event.from_body(event_body()))

    assert "The rollback after a failed handler failed as well" in caplog.text
