"""``flask sangho events`` and ``forget``: what is recorded, and how to let it run again."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import json
import threading
import time
import typing as t

import pytest
import sqlalchemy as sa
from click.testing import Result
from flask import Flask

from flask_sangho_webhooks import Event, ProcessedWebhookEventMixin, SanghoWebhooks
from flask_sangho_webhooks.registry import matches

from .records import fill, insert, TABLE
from .redis_support import Keys
from .support import SECRET, Shop, TYPE

HOUR = dt.timedelta(hours=1)


def run(shop: Shop, *arguments: str, stdin: str | None = None) -> Result:
    return shop.app.test_cli_runner().invoke(args=["sangho", *arguments], input=stdin)


def listed(shop: Shop, *options: str) -> list[dict[str, str]]:
    result = run(shop, "events", "--json", *options)
    assert result.exit_code == 0, result.output
    found: list[dict[str, str]] = json.loads(result.stdout)
    return found


def ids(shop: Shop, *options: str) -> list[str]:
    return [event["id"] for event in listed(shop, *options)]


def record(shop: Shop, event_id: str, event_type: str, processed_at: str = "now()") -> None:
    with shop.app.app_context(), shop.db.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            processed_at = processed_at.replace("now()", "CURRENT_TIMESTAMP")

        connection.execute(
            sa.text(
                f"INSERT INTO {TABLE} (event_id, event_type, processed_at)"
                f" VALUES (:id, :type, {processed_at})"
            ),
            {"id": event_id, "type": event_type},
        )


@pytest.fixture
def two_endpoints(sqlite_url: str) -> c.Iterator[Shop]:
    shop = Shop(sqlite_url, config={"SANGHO_CONNECT_SECRET": SECRET})

    class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        pass

    connect = SanghoWebhooks(
        shop.db,
        name="connect",
        path="/connect",
        config_prefix="SANGHO_CONNECT_",
        model=ConnectEvent,
    )
    shop.app.register_blueprint(connect.blueprint)
    connect.on(TYPE)(lambda event: None)
    shop.webhooks.on(TYPE)(lambda event: None)

    with shop:
        yield shop


# --------------------------------------------------------------------- events


def test_newest_first(shop: Shop) -> None:
    insert(shop, {"evt_2": 2, "evt_1": 1, "evt_3": 3})

    assert ids(shop) == ["evt_1", "evt_2", "evt_3"]
    assert ids(shop, "--limit", "2") == ["evt_1", "evt_2"]


def test_limit_is_twenty(sqlite_shop: Shop) -> None:
    fill(sqlite_shop, "evt_", 30, 5, apart=1)

    assert ids(sqlite_shop) == [f"evt_{number}" for number in range(30, 10, -1)]


def test_times_are_in_utc_whatever_the_zone_of_the_session(shop: Shop) -> None:
    with shop.app.app_context():
        zone = {"postgresql": "SET TIME ZONE 'Asia/Tokyo'", "mysql": "SET time_zone = '+09:00'"}
        statement = zone.get(shop.db.engine.dialect.name.replace("mariadb", "mysql"))

        if statement is not None:

            @sa.event.listens_for(shop.db.engine, "connect")
            def set_zone(connection: t.Any, _: object) -> None:
                with connection.cursor() as cursor:
                    cursor.execute(statement)

                connection.commit()

    shop.webhooks.on(TYPE)(lambda event: None)
    shop.deliver()
    (event,) = listed(shop)
    ago = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(event["processed_at"])

    assert dt.timedelta(seconds=-2) < ago < dt.timedelta(minutes=1)
    assert event["processed_at"].endswith("Z")


def test_record_without_a_time_comes_last(shop: Shop) -> None:
    record(shop, "evt_timeless", TYPE, "NULL")
    insert(shop, {"evt_1": 1})

    if "mariadb" in shop.url:  # where the first TIMESTAMP of a table takes no NULL
        with shop.app.app_context(), shop.db.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE {TABLE} SET processed_at = NULL WHERE event_id = 'evt_timeless'"
            )

    assert [(e["id"], e["processed_at"] is None) for e in listed(shop)] == [
        ("evt_1", False),
        ("evt_timeless", True),
    ]
    assert ids(shop, "--limit", "1") == ["evt_1"]


TYPES = [
    *("payment.succeeded", "PAYMENT.succeeded", "payment.", "payment", "payment.a.b"),
    *("payment_intent.succeeded", "paymentx", "%", "a%b.c", "a_b.c", "axb.c"),
]


@pytest.mark.parametrize("pattern", ["*", "payment.*", "a_b.*", "a%b.c", "payment.succeeded", "%"])
def test_type_means_what_it_means_for_handlers(shop: Shop, pattern: str) -> None:
    for number, event_type in enumerate(TYPES):
        record(shop, f"evt_{number}", event_type)

    assert {event["type"] for event in listed(shop, "--type", pattern)} == {
        event_type for event_type in TYPES if matches(pattern, event_type)
    }


@pytest.mark.parametrize("pattern", ["payment*", "", "*.succeeded", "**"])
def test_pattern_that_matches_nothing_is_refused(sqlite_shop: Shop, pattern: str) -> None:
    result = run(sqlite_shop, "events", "--type", pattern)

    assert result.exit_code == 2
    assert "Invalid value for '--type'" in result.output


PLANS = {
    "sqlite": ("EXPLAIN QUERY PLAN ", "USING INDEX idx_webhook_processed_at"),
    "postgresql": ("EXPLAIN ", "Index Scan Backward using idx_webhook_processed_at"),
    "mariadb": ("EXPLAIN ", "idx_webhook_processed_at"),
}


def test_many_records_are_neither_loaded_nor_sorted(shop: Shop) -> None:
    fill(shop, "evt_", 50_000, 50, apart=1)
    statements: list[tuple[str, t.Any]] = []

    with shop.app.app_context():
        engine = shop.db.engine

        @sa.event.listens_for(engine, "before_cursor_execute")
        def note(_: t.Any, __: t.Any, statement: str, parameters: t.Any, *___: t.Any) -> None:
            if "ORDER BY" in statement:
                statements.append((statement, parameters))

        assert len(ids(shop, "--limit", "3")) == 3
        ((statement, parameters),) = statements
        explain, expected = PLANS[engine.dialect.name]

        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"ANALYZE {TABLE}")

            plan = str(connection.exec_driver_sql(explain + statement, parameters).all())

    assert "LIMIT" in statement
    assert expected in plan
    assert "sort" not in plan.lower()


def test_events_for_a_person(sqlite_shop: Shop) -> None:
    record(sqlite_shop, "evt_1", TYPE, "'2026-02-03 04:05:06'")
    record(sqlite_shop, "evt_22", "payment.failed", "'2026-02-03 04:05:07'")

    assert run(sqlite_shop, "events").output == (
        "2026-02-03T04:05:07Z  evt_22  payment.failed\n"
        "2026-02-03T04:05:06Z  evt_1   payment_intent.succeeded\n"
    )


def test_no_events(sqlite_shop: Shop) -> None:
    assert run(sqlite_shop, "events").output == "No event is recorded.\n"
    assert listed(sqlite_shop) == []
    assert run(sqlite_shop, "events", "--type", "payment.suceeded").output == (
        "No event of type 'payment.suceeded' is recorded. Did you mean 'payment.succeeded'?\n"
    )


def test_events_of_several_endpoints(two_endpoints: Shop) -> None:
    two_endpoints.deliver("evt_1")
    two_endpoints.deliver("evt_2", path="/connect")

    assert [(e["endpoint"], e["id"]) for e in listed(two_endpoints)] == [
        ("sangho_webhooks", "evt_1"),
        ("connect", "evt_2"),
    ]
    assert ids(two_endpoints, "--name", "connect") == ["evt_2"]
    assert "connect          20" in run(two_endpoints, "events").output


def test_redis_cannot_list_events(redis_shop: Shop) -> None:
    result = run(redis_shop, "events")

    assert result.exit_code == 1
    assert "The RedisGuard of 'sangho_webhooks' cannot list events. Leave it out" in result.output


# --------------------------------------------------------------------- forget


def test_forgotten_event_runs_again(shop: Shop) -> None:
    runs: list[str] = []
    shop.webhooks.on(TYPE)(lambda event: runs.append(event.id))
    shop.deliver("evt_1")
    shop.deliver("evt_2")
    result = run(shop, "forget", "evt_1", "--yes")

    assert (result.exit_code, result.output) == (0, "evt_1 was forgotten.\n")
    assert shop.deliver("evt_1").json == {"received": True}
    assert shop.deliver("evt_2").json == {"received": True, "duplicate": True}
    assert runs == ["evt_1", "evt_2", "evt_1"]


def test_forget_with_redis(redis_shop: Shop) -> None:
    redis_shop.webhooks.on(TYPE)(lambda event: None)
    redis_shop.deliver()

    assert run(redis_shop, "forget", "evt_1", "--yes").output == "evt_1 was forgotten.\n"
    assert redis_shop.deliver().json == {"received": True}


@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "enter", "end"])
def test_forget_asks_first(sqlite_shop: Shop, answer: str) -> None:
    insert(sqlite_shop, {"evt_1": 1, "evt_2": 1})
    result = run(sqlite_shop, "forget", "evt_1", "evt_2", stdin=answer)

    assert result.exit_code == 1
    assert "A redelivery of evt_1, evt_2 would run the handlers again. Forget them?" in (
        result.output
    )
    assert sqlite_shop.recorded() == ["evt_1", "evt_2"]


def test_forget_looks_before_it_asks(shop: Shop) -> None:
    insert(shop, {"evt_1": 1})
    nothing = run(shop, "forget", "evt_2", "evt_3", stdin="y\n")
    some = run(shop, "forget", "evt_1", "evt_2", stdin="y\n")

    assert nothing.exit_code == some.exit_code == 1
    assert nothing.output == "evt_2 was not recorded.\nevt_3 was not recorded.\n"
    assert "A redelivery of evt_1 would run the handlers again. Forget it?" in some.output
    assert "evt_2 was not recorded.\n" in some.output
    assert shop.recorded() == []


def test_forget_looks_at_every_endpoint(two_endpoints: Shop) -> None:
    two_endpoints.deliver("evt_2", path="/connect")
    result = run(two_endpoints, "forget", "evt_2", stdin="y\n")

    assert (result.exit_code, "evt_2 was forgotten by connect." in result.output) == (0, True)


def test_forget_after_a_yes(sqlite_shop: Shop) -> None:
    insert(sqlite_shop, {"evt_1": 1})

    assert "Forget it? [y/N]: y\nevt_1 was forgotten.\n" in (
        run(sqlite_shop, "forget", "evt_1", stdin="y\n").output
    )
    assert sqlite_shop.recorded() == []


def test_forget_says_which_were_not_recorded(shop: Shop) -> None:
    insert(shop, {"evt_1": 1, "evt_3": 1, "evt_A": 1})
    result = run(shop, "forget", "evt_1", "evt_2", "evt_3", "evt_1", "evt_a", "--yes")

    assert result.exit_code == 1
    assert sorted(result.output.splitlines()) == [
        "evt_1 was forgotten.",
        "evt_2 was not recorded.",
        "evt_3 was forgotten.",
        "evt_a was not recorded.",
    ]
    assert shop.recorded() == ["evt_A"]


@pytest.mark.parametrize("event_id", ["", "evt 1", "é", "e" * 51, "evt_1\n"])
def test_what_is_no_id_is_refused(sqlite_shop: Shop, event_id: str) -> None:
    insert(sqlite_shop, {"evt_1": 1})
    result = run(sqlite_shop, "forget", "evt_1", event_id, "--yes")

    assert result.exit_code == 2
    assert "is not the id of an event" in result.output
    assert sqlite_shop.recorded() == ["evt_1"]


def test_forget_needs_an_id(sqlite_shop: Shop) -> None:
    assert run(sqlite_shop, "forget", "--yes").exit_code == 2


IN_FLIGHT = {
    "sqlite": "The database is unreachable or locked",
    "postgresql": "The event is being processed right now.",
    "mariadb": "The event is being processed right now.",
}


def test_event_in_flight_is_not_forgotten(shop: Shop) -> None:
    running, release = threading.Event(), threading.Event()

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        running.set()
        assert release.wait(20)

    thread = threading.Thread(target=shop.deliver)
    thread.start()
    assert running.wait(20)
    started = time.monotonic()
    result = run(shop, "forget", "evt_1", "--yes")
    seconds = time.monotonic() - started
    release.set()
    thread.join()

    with shop.app.app_context():
        expected = IN_FLIGHT[shop.db.engine.dialect.name]

    assert result.exit_code == 1
    assert f"evt_1 was not forgotten: {expected}" in result.output
    assert seconds < 4
    assert shop.recorded() == ["evt_1"]


def test_waiting_for_an_event_leaves_the_session_as_it_was(shop: Shop) -> None:
    """A test binds a session to a transaction of its own, and goes on in it after a forget."""
    asked = {
        "sqlite": "PRAGMA busy_timeout",
        "postgresql": "SHOW lock_timeout",
        "mariadb": "SELECT @@SESSION.innodb_lock_wait_timeout",
    }
    with shop.app.app_context():
        statement = asked[shop.db.engine.dialect.name]

        with shop.db.engine.connect() as connection, connection.begin():
            before = connection.exec_driver_sql(statement).scalar()
            shop.db.session.configure(bind=connection)
            shop.db.session.remove()
            assert not shop.webhooks.endpoint().guard.forget("evt_1")
            assert connection.exec_driver_sql(statement).scalar() == before


def test_event_is_forgotten_by_every_endpoint(two_endpoints: Shop) -> None:
    for path in ("/webhook", "/connect"):
        two_endpoints.deliver("evt_1", path=path)
        two_endpoints.deliver("evt_2", path=path)

    assert run(two_endpoints, "forget", "evt_1", "--yes").output == (
        "evt_1 was forgotten by sangho_webhooks, connect.\n"
    )
    assert run(two_endpoints, "forget", "evt_2", "--yes", "--name", "connect").exit_code == 0
    assert two_endpoints.recorded() == ["evt_2"]


# ------------------------------------------------------------------- troubles


@pytest.mark.parametrize("command", [["events"], ["forget", "evt_1", "--yes"], ["forget", "evt_1"]])
def test_missing_table_is_explained(sqlite_url: str, command: list[str]) -> None:
    shop = Shop(sqlite_url)
    result = run(shop, *command)
    shop.__exit__()

    assert result.exit_code == 1
    assert "does not exist. Create it with 'flask sangho upgrade'" in result.output


@pytest.mark.parametrize("command", [["events"], ["forget", "evt_1", "--yes"], ["forget", "evt_1"]])
def test_unreachable_database_is_explained(command: list[str]) -> None:
    shop = Shop("postgresql+psycopg://nobody@127.0.0.1:9/nothing")
    result = run(shop, *command)
    shop.__exit__()

    assert result.exit_code == 1
    assert "The database is unreachable or locked" in result.output


def test_unreachable_redis_is_explained() -> None:
    webhooks = SanghoWebhooks(guard=Keys("redis://127.0.0.1:9/0").guard())
    app = Flask(__name__)
    app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
    webhooks.init_app(app)
    result = app.test_cli_runner().invoke(args=["sangho", "forget", "evt_1", "--yes"])

    assert result.exit_code == 1
    assert "evt_1 was not forgotten: Redis is unreachable or refuses" in result.output


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("events", ["flask --app shop sangho events --type 'payment_intent.*'", "UTC"]),
        ("forget", ["flask --app shop sangho forget evt_1f2e3d4c", "exit code is 1"]),
    ],
)
def test_help_teaches(sqlite_shop: Shop, command: str, texts: list[str]) -> None:
    shown = run(sqlite_shop, command, "--help").output

    for text in texts:
        assert text in " ".join(shown.split())
