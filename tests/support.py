"""A small shop to deliver events to."""

from __future__ import annotations

import collections.abc as c
import json
import time
import typing as t

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_sangho_webhooks import SanghoWebhooks
from flask_sangho_webhooks.testing import sign

SECRET = "whsec_0123456789abcdef"
TYPE = "payment_intent.succeeded"


def event_body(event_id: str = "evt_1", event_type: str = TYPE, **fields: t.Any) -> bytes:
    """The bytes of an event as Sangho sends it."""
    event = {
        "id": event_id,
        "object": "event",
        "api_version": "2026-01-01",
        "type": event_type,
        "created": 1780000100,
        "livemode": True,
        "data": {"object": {"id": "pi_1", "amount": 5000, "metadata": {"order_id": 1}}},
        **fields,
    }
    return json.dumps(event).encode()


class Shop:
    """An app, its database with one table ``grant``, and the extension.

    Enter it to create the tables, leave it to close the connections. Register handlers with
    ``shop.webhooks.on``. ``beside`` sets up something else on the app before the blueprint is
    registered. ``shop.grant(note)`` is an effect; ``shop.grants()`` and
    ``shop.recorded()`` look at the database from another connection.
    """

    def __init__(
        self,
        url: str,
        *,
        config: dict[str, t.Any] | None = None,
        session_options: dict[str, t.Any] | None = None,
        beside: c.Callable[[Flask], object] | None = None,
        **options: t.Any,
    ) -> None:
        self.url = url
        self.db = db = SQLAlchemy(session_options=session_options)

        class Grant(db.Model):  # type: ignore[name-defined, misc]
            id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
            note: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(100), unique=True)

        self.Grant = Grant
        self.webhooks = SanghoWebhooks(db, **options)
        self.app = Flask(__name__)
        self.app.config.update(
            {"SQLALCHEMY_DATABASE_URI": url, "SANGHO_WEBHOOK_SECRET": SECRET, **(config or {})}
        )
        db.init_app(self.app)

        if beside is not None:
            beside(self.app)

        self.app.register_blueprint(self.webhooks.blueprint)
        self._observer = sa.create_engine(url, poolclass=sa.NullPool)

    def __enter__(self) -> Shop:
        with self.app.app_context():
            self.db.create_all()

        return self

    def __exit__(self, *_: object) -> None:
        with self.app.app_context():
            for engine in self.db.engines.values():
                engine.dispose()

    def grant(self, note: str) -> None:
        """Write a row through ``db.session``, without a commit."""
        self.db.session.add(self.Grant(note=note))

    def grants(self) -> list[str]:
        """The notes that are committed, seen from a second connection."""
        with self._observer.connect() as connection:
            return sorted(connection.scalars(sa.select(self.Grant.note)))

    def recorded(self) -> list[str]:
        """The ids that are recorded as processed, seen from a second connection."""
        assert self.webhooks.model is not None

        with self._observer.connect() as connection:
            return sorted(connection.scalars(sa.select(self.webhooks.model.event_id)))

    def deliver(
        self,
        event_id: str = "evt_1",
        event_type: str = TYPE,
        *,
        path: str = "/webhook",
        secret: str = SECRET,
        headers: dict[str, str] | None = None,
        **fields: t.Any,
    ) -> TestResponse:
        """Deliver an event over the test client, as Sangho would."""
        return self.post(
            event_body(event_id, event_type, **fields),
            path=path,
            secret=secret,
            headers={"Sangho-Event-ID": event_id, **(headers or {})},
        )

    def deliver_after_loss(self) -> TestResponse:
        """Deliver an event until the server has noticed that a connection is lost, and has let go
        of what it held: for 5 seconds at most.
        """
        deadline = time.monotonic() + 5
        response = self.deliver()

        while response.status_code == 503 and time.monotonic() < deadline:
            response = self.deliver()

        return response

    def post(
        self,
        body: bytes,
        *,
        path: str = "/webhook",
        secret: str = SECRET,
        headers: dict[str, str] | None = None,
    ) -> TestResponse:
        """Sign and post any bytes over the test client."""
        return self.app.test_client().post(
            path,
            data=body,
            content_type="application/json",
            headers={"Sangho-Signature": sign(body, secret), **(headers or {})},
        )


def prepare_at_once(shop: Shop) -> None:
    """Have psycopg, and so our claims, prepare each statement when it is first executed."""

    def connected(driver: t.Any, record: object) -> None:
        driver.prepare_threshold = 0
        driver.execute("SELECT 1")
        driver.commit()

    with shop.app.app_context():
        sa.event.listen(shop.db.engine, "connect", connected)
        shop.db.engine.dispose()
