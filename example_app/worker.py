"""What ``celery --app example_app.worker worker`` runs."""

from __future__ import annotations

from .app import create_app
from .background import init_celery

flask_app = create_app()
app = flask_app.extensions.get("celery") or init_celery(flask_app)
