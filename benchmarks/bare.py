"""Flask and Flask-SQLAlchemy with a route that does nothing: what both apps stand on."""

from __future__ import annotations

import sqlalchemy as sa
from flask import Flask, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy

from .endpoint import PATH


def create_app(url: str) -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)

    with app.app_context():
        db.session.execute(sa.text("SELECT 1"))

    @app.post(PATH)
    def webhook() -> ResponseReturnValue:
        request.get_data()
        return {"received": True}

    return app
