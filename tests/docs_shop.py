"""What the Python blocks of the documentation find: the shop of the README, and a sender."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import sys
import types
import typing as t

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_sangho_webhooks.testing import sign

SECRET = "whsec_docs"
_numbers = itertools.count(1)

PAYMENT = {"id": "pi_1", "metadata": {"order_id": 1}}


def new_shop() -> types.ModuleType:
    """The module ``shop`` afresh, with an ``app`` in it, whose context is pushed."""
    number = next(_numbers)
    os.environ["FLASK_SANGHO_WEBHOOK_SECRET"] = SECRET
    os.environ["FLASK_SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{pathlib.Path.cwd()}/{number}.sqlite3"
    sys.modules.pop("shop", None)

    import shop  # type: ignore[import-not-found]

    app = shop.app = shop.create_app()
    app.app_context().push()
    return t.cast(types.ModuleType, shop)


def new_app(db: SQLAlchemy | None = None) -> Flask:
    """An app that the extension is not set up on yet, whose context is pushed."""
    app = Flask(f"app_{next(_numbers)}")
    app.config.from_prefixed_env()

    if db is not None:
        db.init_app(app)

    app.app_context().push()
    return app


def deliver(
    app: Flask,
    event_type: str = "payment_intent.succeeded",
    event_id: str | None = None,
    *,
    object: t.Any = PAYMENT,
    path: str = "/webhook",
    secret: str = SECRET,
    **fields: t.Any,
) -> TestResponse:
    """Deliver an event, a new one unless it is named."""
    event_id = event_id or f"evt_{next(_numbers)}"
    event = {"id": event_id, "type": event_type, "data": {"object": object}, **fields}
    body = json.dumps(event).encode()
    headers = {"Sangho-Signature": sign(body, secret)}
    return app.test_client().post(path, data=body, headers=headers)
