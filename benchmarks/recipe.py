"""The guide's recipe in Flask, by a careful hand, with the official SDK and Flask-SQLAlchemy."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm
from flask import Flask, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sangho import SanghoError  # type: ignore[import-untyped]
from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]
from sqlalchemy.dialects import postgresql, sqlite

from .endpoint import PATH, SECRET, SLOW_TYPE, TYPE

INSERTS: dict[str, t.Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def create_app(url: str, pause: c.Callable[[], object] = bool, **config: t.Any) -> Flask:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url, **config)
    db = SQLAlchemy(app)

    class ProcessedWebhookEvent(db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "processed_webhook_events"

        event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50), primary_key=True)
        event_type: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(100))
        processed_at: sa_orm.Mapped[dt.datetime] = sa_orm.mapped_column(
            sa.TIMESTAMP, server_default=sa.func.current_timestamp(), index=True
        )

    class Grant(db.Model):  # type: ignore[name-defined, misc]
        id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
        note: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(100))

    def grant(event: dict[str, t.Any]) -> None:
        db.session.add(Grant(note=event["id"]))

    def grant_slowly(event: dict[str, t.Any]) -> None:
        grant(event)
        pause()

    handlers = {TYPE: grant, SLOW_TYPE: grant_slowly}

    with app.app_context():
        db.create_all()
        claim = claimer(db, sa.inspect(ProcessedWebhookEvent).local_table)

    @app.post(PATH)
    def webhook() -> ResponseReturnValue:
        signature = request.headers.get("Sangho-Signature", "")

        try:
            event = Webhooks.construct_event(request.get_data(), signature, SECRET)
        except SanghoError as error:
            return {"error": str(error)}, 400

        try:
            if claim(event):
                handler = handlers.get(event["type"])

                if handler is not None:
                    handler(event)

                db.session.commit()
            else:
                db.session.rollback()
        except Exception:
            db.session.rollback()
            raise

        return {"received": True}

    return app


def claimer(db: SQLAlchemy, table: t.Any) -> c.Callable[[dict[str, t.Any]], bool]:
    """A function that inserts an event's id, and says whether it was not there."""
    insert = INSERTS.get(db.engine.dialect.name)

    if insert is not None:
        statement = insert(table).on_conflict_do_nothing(index_elements=["event_id"])
        statement = statement.execution_options(preserve_rowcount=True)

        def claim(event: dict[str, t.Any]) -> bool:
            values = {"event_id": event["id"], "event_type": event["type"]}
            result = t.cast("sa.CursorResult[t.Any]", db.session.execute(statement, values))
            return result.rowcount == 1

        return claim

    plain = sa.insert(table)

    def claim_or_fail(event: dict[str, t.Any]) -> bool:
        values = {"event_id": event["id"], "event_type": event["type"]}

        try:
            db.session.execute(plain, values)
        except sa_exc.IntegrityError as error:
            # INSERT IGNORE would take other errors for a duplicate, too.
            if error.orig is not None and error.orig.args[0] == 1062:
                return False

            raise

        return True

    return claim_or_fail
