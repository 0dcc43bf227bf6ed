"""Two receivers as people write them, to show that the checker finds what goes wrong.

Both verify with the official SDK, and both keep the ids of events in the same table as the package.
"""

from __future__ import annotations

import typing as t

import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]
import sqlalchemy as sa
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from sangho import SanghoError

from .handler import Handler
from .settings import Settings

NAIVE = ("checks_then_records", "records_then_handles")

_SELECT = sa.text("SELECT 1 FROM processed_webhook_events WHERE event_id = :id")
_INSERT = sa.text("INSERT INTO processed_webhook_events (event_id, event_type) VALUES (:id, :type)")

Answer = tuple[dict[str, t.Any], int]


def add_naive_receiver(app: Flask, db: SQLAlchemy, handler: Handler, settings: Settings) -> None:
    """Answer ``POST /webhook``."""

    def is_recorded(event: dict[str, t.Any]) -> bool:
        return db.session.execute(_SELECT, {"id": event["id"]}).first() is not None

    def record(event: dict[str, t.Any]) -> None:
        db.session.execute(_INSERT, {"id": event["id"], "type": event["type"]})
        db.session.commit()

    def handle(event: dict[str, t.Any]) -> None:
        handler(event["id"], event["data"]["object"]["does"])
        handler.die("commit", event["id"])
        db.session.commit()
        handler.die("committed", event["id"])

    @app.post("/webhook")
    def receive() -> Answer:
        try:
            event = sdk.Webhooks.construct_event(
                request.get_data(), request.headers["Sangho-Signature"], list(settings.secrets)
            )
        except SanghoError:
            return {"error": "signature"}, 401

        handler.die("claim", event["id"])

        if is_recorded(event):
            return {"received": True, "duplicate": True}, 200

        if settings.receiver == "checks_then_records":
            handle(event)
            record(event)
        else:
            record(event)
            handler.die("claimed", event["id"])
            handle(event)

        return {"received": True}, 200
