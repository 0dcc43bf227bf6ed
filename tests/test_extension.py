"""One extension object, or several, on one app, or several."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import gc
import pathlib
import typing as t
import uuid
import warnings
import weakref

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_sangho_webhooks import (
    ConfigError,
    Event,
    Outcome,
    ProcessedWebhookEventMixin,
    SanghoWebhooks,
    SQLGuard,
)
from flask_sangho_webhooks.config import DEFAULTS
from flask_sangho_webhooks.guards.base import Dispatch, Progress
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, Shop, TYPE

RECEIVED = {"received": True}
DUPLICATE = {"received": True, "duplicate": True}

MakeApp = c.Callable[..., Flask]


@pytest.fixture
def db() -> SQLAlchemy:
    return SQLAlchemy()


@pytest.fixture
def make_app(db: SQLAlchemy, tmp_path: pathlib.Path) -> c.Iterator[MakeApp]:
    """Makes apps with a database each, whose tables are to be created with ``create_all``."""
    engines: list[sa.Engine] = []

    def make_app(**config: t.Any) -> Flask:
        app = Flask(__name__)
        app.config.update(
            SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path / uuid.uuid4().hex}.sqlite3", **config
        )
        db.init_app(app)

        with app.app_context():
            engines.append(db.engine)

        return app

    yield make_app

    for engine in engines:
        engine.dispose()


def create_all(db: SQLAlchemy, *apps: Flask) -> None:
    for app in apps:
        with app.app_context():
            db.create_all()


def deliver(
    app: Flask, path: str = "/webhook", *, secret: str = SECRET, event_id: str = "evt_1"
) -> TestResponse:
    body = event_body(event_id)
    headers = {"Sangho-Signature": sign(body, secret)}
    return app.test_client().post(path, data=body, headers=headers)


def recorded(webhooks: SanghoWebhooks, app: Flask) -> list[str]:
    assert webhooks.db is not None
    assert webhooks.model is not None

    with app.app_context(), webhooks.db.engine.connect() as connection:
        return sorted(connection.scalars(sa.select(webhooks.model.event_id)))


# ------------------------------------------------------------------ one object, two apps


def test_two_apps_with_their_own_secrets_and_databases(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    runs: list[str] = []
    webhooks.on(TYPE)(lambda event: runs.append(event.id))
    one = make_app(SANGHO_WEBHOOK_SECRET="whsec_one")
    two = make_app(SANGHO_WEBHOOK_SECRET="whsec_two")

    for app in (one, two):
        app.register_blueprint(webhooks.blueprint)

    create_all(db, one, two)

    assert deliver(one, secret="whsec_two").status_code == 401
    assert deliver(two, secret="whsec_one").status_code == 401
    assert deliver(one, secret="whsec_one").json == RECEIVED
    assert recorded(webhooks, two) == []
    assert deliver(two, secret="whsec_two").json == RECEIVED
    assert deliver(one, secret="whsec_one").json == DUPLICATE
    assert runs == ["evt_1", "evt_1"]


def test_apps_are_not_kept_alive(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    webhooks.on(TYPE)(lambda event: webhooks.on_commit(lambda: None))
    references: list[weakref.ref[Flask]] = []

    for _ in range(2):
        app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
        app.register_blueprint(webhooks.blueprint)
        create_all(db, app)
        assert deliver(app).json == RECEIVED
        references.append(weakref.ref(app))

        with app.app_context():
            db.engine.dispose()

    del app
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# -------------------------------------------------------------- two endpoints in one app


class Connect(t.NamedTuple):
    """An app with two endpoints."""

    app: Flask
    payments: SanghoWebhooks
    connect: SanghoWebhooks


@pytest.fixture
def two_endpoints(db: SQLAlchemy, make_app: MakeApp) -> Connect:
    class ConnectEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"

    payments = SanghoWebhooks(db)
    connect = SanghoWebhooks(
        db,
        name="connect",
        config_prefix="SANGHO_CONNECT_",
        path="/connect-webhook",
        model=ConnectEvent,
    )
    app = make_app(SANGHO_WEBHOOK_SECRET="whsec_pay", SANGHO_CONNECT_SECRET="whsec_connect")
    app.register_blueprint(payments.blueprint)
    app.register_blueprint(connect.blueprint)
    create_all(db, app)
    return Connect(app, payments, connect)


def test_each_endpoint_runs_its_own_handlers(two_endpoints: Connect) -> None:
    app, payments, connect = two_endpoints
    runs: list[str] = []
    payments.on(TYPE)(lambda event: runs.append("payments"))
    connect.on(TYPE)(lambda event: runs.append("connect"))

    for expected in (RECEIVED, DUPLICATE):
        assert deliver(app, secret="whsec_pay").json == expected
        assert deliver(app, "/connect-webhook", secret="whsec_connect").json == expected

    assert runs == ["payments", "connect"]
    assert recorded(payments, app) == recorded(connect, app) == ["evt_1"]


def test_secrets_of_endpoints_are_not_interchangeable(two_endpoints: Connect) -> None:
    assert deliver(two_endpoints.app, secret="whsec_connect").status_code == 401
    assert deliver(two_endpoints.app, "/connect-webhook", secret="whsec_pay").status_code == 401


def test_endpoints_must_not_share_a_table(db: SQLAlchemy, make_app: MakeApp) -> None:
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    SanghoWebhooks(db).init_app(app)

    with pytest.raises(ConfigError, match="share a table"):
        SanghoWebhooks(db, name="connect").init_app(app)


def test_endpoints_must_not_share_a_guard(make_app: MakeApp) -> None:
    guard = NoGuard()
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    SanghoWebhooks(guard=guard).init_app(app)

    with pytest.raises(ConfigError, match="share a table or guard"):
        SanghoWebhooks(guard=guard, name="connect").init_app(app)


def test_endpoints_must_not_share_a_name(db: SQLAlchemy, make_app: MakeApp) -> None:
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    app.register_blueprint(SanghoWebhooks(db).blueprint)

    with pytest.raises(ConfigError, match="a name, config_prefix and path of its own"):
        app.register_blueprint(SanghoWebhooks(db).blueprint)


# ---------------------------------------------------------------------- registering


def test_blueprint_under_two_names(sqlite_shop: Shop) -> None:
    runs: list[str] = []
    sqlite_shop.webhooks.on(TYPE)(lambda event: runs.append(event.id))
    sqlite_shop.app.register_blueprint(
        sqlite_shop.webhooks.blueprint, name="again", url_prefix="/v2"
    )

    assert sqlite_shop.deliver().json == RECEIVED
    assert sqlite_shop.deliver(path="/v2/webhook").json == DUPLICATE
    assert sqlite_shop.deliver("evt_2", path="/v2/webhook").json == RECEIVED
    assert runs == ["evt_1", "evt_2"]


def test_init_app_before_the_blueprint(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    webhooks.on(TYPE)(lambda event: None)
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint)
    create_all(db, app)

    assert deliver(app).json == RECEIVED


def test_init_app_again_reads_the_configuration_and_adds_nothing(sqlite_shop: Shop) -> None:
    app, webhooks = sqlite_shop.app, sqlite_shop.webhooks
    runs: list[str] = []
    webhooks.on(TYPE)(lambda event: runs.append(event.id))
    before = (len(list(app.url_map.iter_rules())), sorted(app.cli.commands), sorted(app.extensions))

    app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_new"
    webhooks.init_app(app)

    assert sqlite_shop.deliver().status_code == 401
    assert sqlite_shop.deliver(secret="whsec_new").json == RECEIVED
    assert runs == ["evt_1"]
    assert before == (
        len(list(app.url_map.iter_rules())),
        sorted(app.cli.commands),
        sorted(app.extensions),
    )


def test_configuration_is_read_in_init_app_only(sqlite_shop: Shop) -> None:
    sqlite_shop.app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_new"

    assert sqlite_shop.deliver().status_code == 200


def test_init_app_that_fails_again_changes_nothing(sqlite_shop: Shop) -> None:
    sqlite_shop.app.config["SANGHO_WEBHOOK_SECRET"] = ""

    with pytest.raises(ConfigError):
        sqlite_shop.webhooks.init_app(sqlite_shop.app)

    assert sqlite_shop.deliver().status_code == 200


def test_defaults_are_filled_in(make_app: MakeApp, db: SQLAlchemy) -> None:
    app = make_app(SANGHO_CONNECT_SECRET=SECRET)
    SanghoWebhooks(db, config_prefix="SANGHO_CONNECT_").init_app(app)

    keys = {key for key in app.config if key.startswith("SANGHO_")}
    assert keys == {f"SANGHO_CONNECT_{name}" for name in DEFAULTS}


@pytest.mark.parametrize("way", ["register_blueprint", "init_app"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"SANGHO_WEBHOOK_SECRET": " "},
        {"SANGHO_WEBHOOK_SECRET": ["whsec_"]},
        {"SANGHO_WEBHOOK_SECRET": SECRET, "SANGHO_WEBHOOK_TOLERANCE": 0},
        {"SANGHO_WEBHOOK_SECRET": SECRET, "SANGHO_WEBHOOK_RETENTION": dt.timedelta(hours=47)},
    ],
    ids=["missing", "blank", "prefix", "tolerance", "retention"],
)
def test_corrected_retry(
    db: SQLAlchemy, make_app: MakeApp, way: str, config: dict[str, t.Any]
) -> None:
    webhooks = SanghoWebhooks(db)
    webhooks.on(TYPE)(lambda event: None)
    app = make_app(**config)

    def set_up() -> None:
        if way == "init_app":
            webhooks.init_app(app)

        app.register_blueprint(webhooks.blueprint)

    with pytest.raises(ConfigError):
        set_up()

    assert "sangho_webhooks" not in app.extensions
    assert not app.blueprints
    assert "sangho" not in app.cli.commands

    app.config.update(
        SANGHO_WEBHOOK_SECRET=SECRET, SANGHO_WEBHOOK_TOLERANCE=300, SANGHO_WEBHOOK_RETENTION=172800
    )
    set_up()
    create_all(db, app)

    assert deliver(app).json == RECEIVED


def test_neither_database_nor_guard(make_app: MakeApp) -> None:
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)

    with pytest.raises(ConfigError, match=r"SanghoWebhooks\(db\)"):
        app.register_blueprint(SanghoWebhooks().blueprint)


def test_model_belongs_to_the_guard(db: SQLAlchemy) -> None:
    with pytest.raises(ConfigError, match=r"SQLGuard\(db, model\)"):
        SanghoWebhooks(db, guard=SQLGuard(db), model=object)


def test_white_space_around_the_secret(make_app: MakeApp, db: SQLAlchemy) -> None:
    webhooks = SanghoWebhooks(db)
    app = make_app(SANGHO_WEBHOOK_SECRET=f" {SECRET}\n")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.register_blueprint(webhooks.blueprint)

    assert [SECRET in str(w.message) for w in caught] == [False]
    assert deliver(app).status_code == 200


# ---------------------------------------------------------------- without the blueprint


def test_process_without_a_route(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    runs: list[Event] = []
    webhooks.on(TYPE)(runs.append)
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    webhooks.init_app(app)
    create_all(db, app)
    event = Event.from_body(event_body())

    with app.app_context():
        assert webhooks.process(event) is Outcome.PROCESSED
        assert webhooks.process(event) is Outcome.DUPLICATE
        assert webhooks.process(Event(id="evt_2", type="payout.paid")) is Outcome.UNHANDLED

    assert runs == [event]
    assert recorded(webhooks, app) == ["evt_1"]


def test_process_in_an_app_that_is_not_set_up(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    SanghoWebhooks(guard=NoGuard()).init_app(app := make_app(SANGHO_WEBHOOK_SECRET=SECRET))

    with (
        app.app_context(),
        pytest.raises(RuntimeError, match=r"app\.register_blueprint\(webhooks\.blueprint\)"),
    ):
        webhooks.process(Event(id="evt_1", type=TYPE))


def test_process_outside_an_app(db: SQLAlchemy) -> None:
    with pytest.raises(RuntimeError, match="outside of application context"):
        SanghoWebhooks(db).process(Event(id="evt_1", type=TYPE))


class NoGuard:
    """A guard that is only there."""

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        raise NotImplementedError

    def seen(self, event_id: str) -> bool:
        raise NotImplementedError

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


# -------------------------------------------------------------------------- handlers


def test_decorating_at_any_time(db: SQLAlchemy, make_app: MakeApp) -> None:
    webhooks = SanghoWebhooks(db)
    app = make_app(SANGHO_WEBHOOK_SECRET=SECRET)
    runs: list[str] = []

    @webhooks.on(TYPE)
    def before(event: Event) -> None:
        runs.append("before")

    app.register_blueprint(webhooks.blueprint)
    create_all(db, app)

    @webhooks.on(TYPE)
    def after(event: Event) -> None:
        runs.append("after")

    assert deliver(app, event_id="evt_1").json == RECEIVED
    assert runs == ["before", "after"]

    @webhooks.on(TYPE)
    def after_the_first_request(event: Event) -> None:
        runs.append("late")

    assert deliver(app, event_id="evt_2").json == RECEIVED
    assert runs == ["before", "after", "before", "after", "late"]
    assert [handler.function for handler in webhooks.handlers] == [
        before,
        after,
        after_the_first_request,
    ]


def test_decorator_returns_the_function(db: SQLAlchemy) -> None:
    def handler(event: Event) -> None: ...

    assert SanghoWebhooks(db).on(TYPE)(handler) is handler


def test_unknown_type_is_reported_where_it_is_written(db: SQLAlchemy) -> None:
    webhooks = SanghoWebhooks(db)

    with pytest.warns(UserWarning, match=r"Did you mean 'payment_intent\.succeeded'") as caught:
        webhooks.on("payment_intent.suceeded")(lambda event: None)

    assert caught[0].filename == __file__
