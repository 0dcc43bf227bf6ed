"""The same with the package."""

from __future__ import annotations

import collections.abc as c
import typing as t

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import Event, SanghoWebhooks

from .endpoint import SECRET, SLOW_TYPE, TYPE


def create_app(url: str, pause: c.Callable[[], object] = bool, **config: t.Any) -> Flask:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url, SANGHO_WEBHOOK_SECRET=SECRET, **config)
    db = SQLAlchemy(app)
    webhooks = SanghoWebhooks(db)

    class Grant(db.Model):  # type: ignore[name-defined, misc]
        id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
        note: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(100))

    @webhooks.on(TYPE)
    def grant(event: Event) -> None:
        db.session.add(Grant(note=event.id))

    @webhooks.on(SLOW_TYPE)
    def grant_slowly(event: Event) -> None:
        grant(event)
        pause()

    app.register_blueprint(webhooks.blueprint)

    with app.app_context():
        db.create_all()

    return app
