"""Flask's command line in processes of its own, as a person runs it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from .support import SECRET

SHOP = """\
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import SanghoWebhooks

db = SQLAlchemy()
webhooks = SanghoWebhooks(db)


def create_app():
    app = Flask(__name__)
    app.config.from_prefixed_env()
    db.init_app(app)
    app.register_blueprint(webhooks.blueprint)
    return app
"""

MIGRATED_SHOP = SHOP.replace("    return app", "    Migrate(app, db)\n    return app").replace(
    "from flask_sqlalchemy", "from flask_migrate import Migrate\nfrom flask_sqlalchemy"
)


def write_app(folder: pathlib.Path, source: str = SHOP) -> pathlib.Path:
    """Write ``shop.py``; its database is that of ``flask()`` below."""
    (folder / "shop.py").write_text(source)
    return folder


def flask_command(*arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-m", "flask", "--app", "shop", *arguments]


def environment(url: str, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "FLASK_SQLALCHEMY_DATABASE_URI": url,
        "FLASK_SANGHO_WEBHOOK_SECRET": SECRET,
        **variables,
    }


def flask(
    folder: pathlib.Path, url: str, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run one command of the app in a folder to its end."""
    return subprocess.run(
        flask_command(*arguments, python=python),
        cwd=folder,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=60,
    )
