"""The application factory."""

from __future__ import annotations

import click
from flask import Blueprint, Flask

from . import background
from .models import db, open_shop
from .page import page, player
from .scenes import EXAMPLE_SECRET
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

    app.register_blueprint(page)

    if "SANGHO_WEBHOOK_SECRET" not in app.config:
        # So that the shop can be tried before there is a secret. An app of your own is better off
        # without: then it does not start, and says what is missing.
        app.config["SANGHO_WEBHOOK_SECRET"] = EXAMPLE_SECRET
        app.register_blueprint(player)
        app.logger.warning(
            "This shop plays Sangho itself, with a secret that everybody knows. For deliveries from"
            " Sangho, set FLASK_SANGHO_WEBHOOK_SECRET to the endpoint's signing secret from"
            " Sangho's dashboard."
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


@shop.cli.command("open-shop")
def open_shop_command() -> None:
    """Create the shop's tables, and a few orders to be paid."""
    open_shop()
    click.echo("The shop is open.")
