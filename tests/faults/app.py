"""What gunicorn and Celery serve: one small app for every receiver."""

from __future__ import annotations

import os
import pathlib
import typing as t

import sqlalchemy as sa
from flask import Flask, request, Response
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import Event, event_processed, Outcome, SanghoWebhooks
from flask_sangho_webhooks.queue import Queue

from .handler import Handler, watch_sql
from .journal import Journal
from .ledger import metadata
from .naive import add_naive_receiver, NAIVE
from .settings import Settings

if t.TYPE_CHECKING:
    from flask_sangho_webhooks import RedisGuard

TABLE = "processed_webhook_events"


def create_app() -> Flask:
    """By the settings in the environment."""
    settings = Settings.load()
    db = SQLAlchemy()
    handler = Handler(db, Journal(pathlib.Path(settings.folder)))
    app = Flask(__name__)
    app.config.update(
        SQLALCHEMY_DATABASE_URI=settings.database_url,
        SANGHO_WEBHOOK_SECRET=list(settings.secrets),
        SANGHO_WEBHOOK_RETRY_AFTER=1,
    )
    db.init_app(app)
    _watch_requests(app, handler)

    if settings.receiver in NAIVE:
        add_naive_receiver(app, db, handler, settings)
    else:
        _add_extension(app, db, handler, settings)

    @app.get("/pool")
    def pool() -> dict[str, int]:
        pool: t.Any = db.engine.pool
        return {"pid": os.getpid(), "out": pool.checkedout(), "idle": pool.checkedin()}

    return app


def _add_extension(app: Flask, db: SQLAlchemy, handler: Handler, settings: Settings) -> None:
    guard: RedisGuard | None = None
    queue: Queue | None = None

    # Loaded where they are needed: servers and workers start often.
    if settings.receiver == "redis":
        from .dying_redis import redis_guard

        guard = redis_guard(handler, settings)
    elif settings.receiver == "celery":
        from .background import make_queue

        queue = make_queue(app, settings)

    webhooks = SanghoWebhooks(db, guard=guard, queue=queue)

    @webhooks.on("*")
    def handle(event: Event) -> None:
        handler(event.id, event.object["does"])

    def processed(app: Flask, *, event: Event, outcome: Outcome, **_: object) -> None:
        handler.end(outcome.value)

        if guard is None:
            handler.die("committed", event.id)

    app.register_blueprint(webhooks.blueprint)
    event_processed.connect(processed, app, weak=False)

    with app.app_context():
        watch_sql(handler, db.engine, TABLE)

    if guard is not None:
        # The effect is committed, and the record is not in Redis.
        sa.event.listen(
            db.session, "after_commit", lambda session: handler.die("committed", handler.event_id)
        )


def _watch_requests(app: Flask, handler: Handler) -> None:
    @app.before_request
    def arrive() -> None:
        handler.arrive()
        handler.die("arrival", request.headers.get("Sangho-Event-ID"))

    @app.after_request
    def answer(response: Response) -> Response:
        handler.end(f"answered {response.status_code}")
        handler.die("answer", request.headers.get("Sangho-Event-ID"))
        return response


def create_tables(url: str) -> None:
    """All tables of a scenario."""
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url, SANGHO_WEBHOOK_SECRET="whsec_0123456789abcdef")
    db = SQLAlchemy(app)
    SanghoWebhooks(db).init_app(app)

    with app.app_context():
        db.create_all()
        metadata.create_all(db.engine)
        db.engine.dispose()
