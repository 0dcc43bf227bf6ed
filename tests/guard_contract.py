"""What every guard promises, whatever its store."""

from __future__ import annotations

import collections
import collections.abc as c
import concurrent.futures
import contextlib
import datetime as dt
import threading
import time
import typing as t

import pytest
from werkzeug.test import TestResponse

from flask_sangho_webhooks import (
    Discard,
    Event,
    EventInProgress,
    Guard,
    GuardUnavailable,
    RetryLater,
    SanghoWebhooks,
)

from .support import event_body, SECRET, Shop, TYPE

THREADS = 8


class GuardContract:
    """Inherit, and provide the fixture ``shop``."""

    @pytest.fixture(autouse=True)
    def short_lock_timeout(self, shop: Shop) -> None:
        shop.app.config["SANGHO_WEBHOOK_LOCK_TIMEOUT"] = 0.2
        shop.webhooks.init_app(shop.app)

    def guard(self, shop: Shop) -> Guard:
        return shop.webhooks.endpoint().guard

    def seen(self, shop: Shop, event_id: str = "evt_1") -> bool:
        with shop.app.app_context():
            return self.guard(shop).seen(event_id)

    # -- one run ---------------------------------------------------------------

    def test_second_delivery_is_a_duplicate(self, shop: Shop) -> None:
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))

        assert shop.deliver().json == {"received": True}
        assert shop.deliver().json == {"received": True, "duplicate": True}
        assert shop.grants() == ["evt_1"]

    def test_ids_are_told_apart_byte_by_byte(self, shop: Shop) -> None:
        ids = ["evt_a", "evt_A", "evt_*", "evt_?", "evt_%", "evt__", "evt:1", "{evt}", "e" * 50]
        runs: list[str] = []
        shop.webhooks.on(TYPE)(lambda event: runs.append(event.id))

        for event_id in [*ids, *ids]:
            assert shop.deliver(event_id).status_code == 200

        assert runs == ids

    def test_simultaneous_deliveries_run_once(self, shop: Shop) -> None:
        runs: collections.Counter[str] = collections.Counter()
        shop.webhooks.on(TYPE)(lambda event: runs.update([event.id]))
        barrier = threading.Barrier(THREADS)

        def deliver(_: int) -> list[TestResponse]:
            responses = []

            for number in range(10):
                barrier.wait(20)
                responses.append(shop.deliver(f"evt_{number}"))

            return responses

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            answers = [
                answer for answers in pool.map(deliver, range(THREADS)) for answer in answers
            ]

        assert runs == {f"evt_{number}": 1 for number in range(10)}
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert [answer.json for answer in answers].count({"received": True}) == 10

    def test_two_endpoints_process_one_event_each(self, shop: Shop) -> None:
        runs: list[str] = []
        other = self.second_endpoint(shop)
        shop.app.config["SANGHO_CONNECT_SECRET"] = SECRET
        shop.app.register_blueprint(other.blueprint)

        with shop.app.app_context():
            shop.db.create_all()

        shop.webhooks.on(TYPE)(lambda event: runs.append("first"))
        other.on(TYPE)(lambda event: runs.append("second"))

        for path in ["/webhook", "/connect", "/webhook", "/connect"]:
            assert shop.deliver(path=path).status_code == 200

        assert runs == ["first", "second"]

    def second_endpoint(self, shop: Shop) -> SanghoWebhooks:
        return SanghoWebhooks(
            shop.db,
            guard=shop.webhooks.guard,
            name="connect",
            path="/connect",
            config_prefix="SANGHO_CONNECT_",
        )

    # -- a run that is not finished --------------------------------------------

    def test_delivery_meanwhile_is_refused(self, shop: Shop) -> None:
        with self.in_flight(shop) as finish:
            assert shop.deliver().status_code == 503
            assert not self.seen(shop)
            assert finish().json == {"received": True}

        assert shop.deliver().json == {"received": True, "duplicate": True}
        assert shop.grants() == ["evt_1"]

    def test_delivery_after_a_refused_one_and_a_failure_runs(self, shop: Shop) -> None:
        with self.in_flight(shop, fails=True) as finish:
            assert shop.deliver().status_code == 503
            assert finish().status_code == 500

        assert shop.deliver().json == {"received": True}
        assert shop.grants() == ["evt_1"]

    @contextlib.contextmanager
    def in_flight(
        self, shop: Shop, *, fails: bool = False
    ) -> c.Iterator[c.Callable[[], TestResponse]]:
        """Hold a delivery in its handler. Yields what lets it end, and returns its answer."""
        running, release = threading.Event(), threading.Event()
        runs = 0

        def handler(event: Event) -> None:
            nonlocal runs
            runs += 1
            shop.grant(event.id)

            if runs == 1:
                running.set()
                assert release.wait(20)

                if fails:
                    raise RuntimeError

        shop.webhooks.on(TYPE)(handler)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(shop.deliver)

            def finish() -> TestResponse:
                release.set()
                return first.result(20)

            try:
                assert running.wait(20)
                yield finish
            finally:
                release.set()

    # -- a run that fails ------------------------------------------------------

    @pytest.mark.parametrize("error", [RuntimeError(), RetryLater(7), SystemExit()])
    def test_failed_event_is_not_recorded_and_runs_again(
        self, shop: Shop, error: BaseException
    ) -> None:
        errors = [error]

        def handler(event: Event) -> None:
            shop.grant(event.id)

            if errors:
                raise errors.pop()

        shop.webhooks.on(TYPE)(handler)

        with contextlib.suppress(SystemExit):
            assert shop.deliver().status_code == (503 if isinstance(error, RetryLater) else 500)

        assert shop.grants() == []
        assert not self.seen(shop)
        assert shop.deliver().json == {"received": True}
        assert shop.grants() == ["evt_1"]

    def test_handlers_of_an_event_fail_together(self, shop: Shop) -> None:
        errors = [RuntimeError()]

        def second(event: Event) -> None:
            shop.grant("second")

            if errors:
                raise errors.pop()

        shop.webhooks.on(TYPE)(lambda event: shop.grant("first"))
        shop.webhooks.on(TYPE)(second)

        assert shop.deliver().status_code == 500
        assert shop.grants() == []
        assert shop.deliver().status_code == 200
        assert shop.grants() == ["first", "second"]

    def test_discarded_event_is_recorded_without_its_effects(self, shop: Shop) -> None:
        def handler(event: Event) -> None:
            shop.grant(event.id)
            raise Discard

        shop.webhooks.on(TYPE)(handler)

        assert shop.deliver().json == {"received": True, "discarded": True}
        assert shop.deliver().json == {"received": True, "duplicate": True}
        assert shop.grants() == []

    def test_callbacks_run_once_the_event_is_recorded(self, shop: Shop) -> None:
        recorded: list[bool] = []
        errors = [RuntimeError()]

        def handler(event: Event) -> None:
            shop.webhooks.on_commit(lambda: recorded.append(self.seen(shop)))

            if errors:
                raise errors.pop()

        shop.webhooks.on(TYPE)(handler)

        assert [shop.deliver().status_code for _ in range(3)] == [500, 200, 200]
        assert recorded == [True]

    # -- records ---------------------------------------------------------------

    def test_event_is_seen_once_it_is_processed(self, shop: Shop) -> None:
        seen: list[bool] = []

        with self.in_flight(shop) as finish:
            seen.append(self.seen(shop))
            finish()

        assert [*seen, self.seen(shop), self.seen(shop, "evt_2")] == [False, True, False]

    def test_forgotten_event_runs_again(self, shop: Shop) -> None:
        runs: list[str] = []
        shop.webhooks.on(TYPE)(lambda event: runs.append(event.id))
        shop.deliver()

        with shop.app.app_context():
            assert self.guard(shop).forget("evt_1")
            assert not self.guard(shop).forget("evt_1")

        assert shop.deliver().json == {"received": True}
        assert runs == ["evt_1", "evt_1"]

    def test_event_in_flight_cannot_be_forgotten(self, shop: Shop) -> None:
        with self.in_flight(shop) as finish:
            started = time.monotonic()

            with shop.app.app_context(), pytest.raises((EventInProgress, GuardUnavailable)):
                self.guard(shop).forget("evt_1")

            assert time.monotonic() - started < 4  # LOCK_TIMEOUT is 2
            assert finish().json == {"received": True}

        assert shop.deliver().json == {"received": True, "duplicate": True}

    def test_cleanup_keeps_what_is_not_old(self, shop: Shop) -> None:
        shop.webhooks.on(TYPE)(lambda event: None)
        shop.deliver()

        with shop.app.app_context():
            assert self.guard(shop).cleanup(dt.timedelta(hours=48), dry_run=True) == 0
            assert self.guard(shop).cleanup(dt.timedelta(hours=48)) == 0

        assert shop.deliver().json == {"received": True, "duplicate": True}

    def test_script_needs_no_request(self, shop: Shop) -> None:
        runs: list[t.Any] = []
        shop.webhooks.on(TYPE)(lambda event: runs.append(event.object["id"]))
        event = Event.from_body(event_body())

        with shop.app.app_context():
            assert [shop.webhooks.process(event).value for _ in range(2)] == [
                "processed",
                "duplicate",
            ]

        assert runs == ["pi_1"]
