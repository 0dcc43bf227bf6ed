"""The model of the table, the app's own models, and the mixin under every kind of base."""

from __future__ import annotations

import collections.abc as c
import contextlib
import typing as t

import pytest
import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import (
    ConfigError,
    Event,
    ProcessedWebhookEventMixin,
    SanghoWebhooks,
    SQLGuard,
)

from .support import SECRET, Shop, TYPE


def declarative_base() -> type[t.Any]:
    class Base(sa_orm.DeclarativeBase):
        pass

    return Base


def base_without_metaclass() -> type[t.Any]:
    class Base(sa_orm.DeclarativeBaseNoMeta):
        pass

    return Base


def dataclass_base() -> type[t.Any]:
    class Base(sa_orm.MappedAsDataclass, sa_orm.DeclarativeBase):
        pass

    return Base


@pytest.fixture(params=[None, declarative_base, base_without_metaclass, dataclass_base])
def db(request: pytest.FixtureRequest) -> SQLAlchemy:
    """A ``db`` on each kind of base that Flask-SQLAlchemy takes."""
    if request.param is None:
        return SQLAlchemy()

    try:
        return SQLAlchemy(model_class=request.param())
    except sa_exc.InvalidRequestError:
        pytest.skip("Flask-SQLAlchemy does not take a dataclass base on this SQLAlchemy.")


@contextlib.contextmanager
def app_of(db: SQLAlchemy, webhooks: SanghoWebhooks, **config: t.Any) -> c.Iterator[Flask]:
    """An app with empty tables, its context pushed."""
    app = Flask(__name__)
    app.config.update(
        {"SQLALCHEMY_DATABASE_URI": "sqlite://", "SANGHO_WEBHOOK_SECRET": SECRET, **config}
    )
    db.init_app(app)
    webhooks.init_app(app)

    with app.app_context():
        db.create_all()

        try:
            yield app
        finally:
            db.session.remove()

            for engine in db.engines.values():
                engine.dispose()


def process(webhooks: SanghoWebhooks, event_id: str = "evt_1") -> None:
    webhooks.on(TYPE)(lambda event: None)
    webhooks.process(Event(id=event_id, type=TYPE))


def recorded(db: SQLAlchemy, model: type[t.Any]) -> list[str]:
    return list(db.session.scalars(sa.select(model.event_id)))


def index_names(model: type[t.Any]) -> list[t.Any]:
    return [index.name for index in model.__table__.indexes]


def test_default_model_is_the_guides_table(db: SQLAlchemy) -> None:
    model = SQLGuard(db).model

    assert model.__table__.name == "processed_webhook_events"
    assert model.__table__.c.keys() == ["event_id", "event_type", "processed_at"]
    assert index_names(model) == ["idx_webhook_processed_at"]


def test_default_model_works_on_every_base(db: SQLAlchemy) -> None:
    webhooks = SanghoWebhooks(db)

    with app_of(db, webhooks):
        process(webhooks)
        assert webhooks.model is not None
        assert recorded(db, webhooks.model) == ["evt_1"]


def test_mixin_works_on_every_base(db: SQLAlchemy) -> None:
    class ConnectEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"

    webhooks = SanghoWebhooks(db, model=ConnectEvent)

    with app_of(db, webhooks):
        process(webhooks)
        assert recorded(db, ConnectEvent) == ["evt_1"]


def test_mixin_works_in_a_single_dataclass_model() -> None:
    db = SQLAlchemy(model_class=declarative_base())

    class ConnectEvent(
        ProcessedWebhookEventMixin,
        sa_orm.MappedAsDataclass,
        db.Model,  # type: ignore[name-defined, misc]
    ):
        __tablename__ = "connect_events"
        note: sa_orm.Mapped[str | None] = sa_orm.mapped_column(default=None)

    webhooks = SanghoWebhooks(db, model=ConnectEvent)

    with app_of(db, webhooks):
        process(webhooks)
        assert recorded(db, ConnectEvent) == ["evt_1"]


def test_default_model_is_made_once() -> None:
    db = SQLAlchemy()

    assert SQLGuard(db).model is SQLGuard(db).model


def test_apps_own_model_of_the_guides_table_is_used() -> None:
    db = SQLAlchemy()

    class Processed(db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "processed_webhook_events"
        event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50), primary_key=True)
        event_type: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(100))
        processed_at: sa_orm.Mapped[t.Any] = sa_orm.mapped_column(sa.TIMESTAMP())

    webhooks = SanghoWebhooks(db)

    with app_of(db, webhooks):
        process(webhooks)
        assert recorded(db, Processed) == ["evt_1"]


@pytest.mark.parametrize(
    "columns",
    [
        {"event_id": {"primary_key": True}},
        {"id": {"primary_key": True}, "event_id": {}, "event_type": {}, "processed_at": {}},
    ],
    ids=["a column is missing", "another primary key"],
)
def test_unusable_model_is_refused(columns: dict[str, dict[str, t.Any]]) -> None:
    db = SQLAlchemy()
    mapped = {name: sa_orm.mapped_column(sa.String(50), **kw) for name, kw in columns.items()}
    model = type("Seen", (db.Model,), {"__tablename__": "seen", "__module__": __name__, **mapped})

    with pytest.raises(ConfigError, match=r"'Seen' cannot hold .* ProcessedWebhookEventMixin"):
        SQLGuard(db, model)


def test_own_table_args_do_not_cost_the_index() -> None:
    db = SQLAlchemy()

    class ConnectEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"
        __table_args__: t.ClassVar = {"comment": "Events of connected accounts"}

    assert index_names(ConnectEvent) == ["idx_connect_events_processed_at"]


def test_inheriting_from_a_model_adds_no_second_index() -> None:
    db = SQLAlchemy()

    class ConnectEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"

    class SpecialEvent(ConnectEvent):
        pass

    assert index_names(SpecialEvent) == ["idx_connect_events_processed_at"]


def test_records_live_in_the_database_of_the_bind_key(sqlite_url: str) -> None:
    db = SQLAlchemy()

    class ConnectEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __bind_key__ = "events"

    webhooks = SanghoWebhooks(db, model=ConnectEvent)

    with app_of(db, webhooks, SQLALCHEMY_BINDS={"events": sqlite_url}):
        process(webhooks)

        with db.engines["events"].connect() as connection:
            assert connection.scalars(sa.select(ConnectEvent.event_id)).all() == ["evt_1"]


def test_ids_that_differ_in_case_only_are_two_events(shop: Shop) -> None:
    shop.webhooks.on(TYPE)(lambda event: None)

    answers = [shop.deliver(event_id).json for event_id in ("evt_a", "evt_A", "evt_a")]

    assert answers == [
        {"received": True},
        {"received": True},
        {"received": True, "duplicate": True},
    ]
    assert shop.recorded() == ["evt_A", "evt_a"]
