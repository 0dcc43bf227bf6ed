"""The application factory."""

from __future__ import annotations

import secrets

import click
import sqlalchemy as sa
from flask import Blueprint, Flask, render_template

from . import background
from .models import db, Grant, open_shop, Order
from .webhooks import webhooks

LOCAL_DATABASE = "sqlite:///shop.sqlite3"
"""A file in the instance folder."""

shop = Blueprint("shop", __name__, cli_group=None)


def create_app(instance_path: str | None = None) -> Flask:
    """Make the shop.

    Environment variables that begin with ``FLASK_`` configure it, among them
    ``FLASK_SANGHO_WEBHOOK_SECRET`` and ``FLASK_SQLALCHEMY_DATABASE_URI``.

    :param instance_path: where a local database lives; Flask's own choice by default.
    """
    app = Flask(__name__, instance_path=instance_path)
    app.config["SQLALCHEMY_DATABASE_URI"] = LOCAL_DATABASE
    app.config.from_prefixed_env()

    if "SANGHO_WEBHOOK_SECRET" not in app.config:
        # So that the shop can be looked at before there is a secret. Nobody knows this one.
        app.config["SANGHO_WEBHOOK_SECRET"] = f"whsec_{secrets.token_hex(16)}"
        app.logger.warning(
            "No delivery will be accepted: set FLASK_SANGHO_WEBHOOK_SECRET to the endpoint's"
            " signing secret from Sangho's dashboard."
        )

    db.init_app(app)
    app.register_blueprint(shop)
    app.register_blueprint(webhooks.blueprint)

    if background.USES_CELERY:
        background.init_celery(app)

    if app.config["SQLALCHEMY_DATABASE_URI"] == LOCAL_DATABASE:
        with app.app_context():
            open_shop()

    return app


@shop.get("/")
def index() -> str:
    return render_template(
        "index.html",
        orders=db.session.scalars(sa.select(Order).order_by(Order.reference)).all(),
        grants=db.session.scalars(sa.select(Grant).order_by(Grant.id)).all(),
    )


@shop.cli.command("open-shop")
def open_shop_command() -> None:
    """Create the shop's tables, and a few orders to be paid."""
    open_shop()
    click.echo("The shop is open.")
