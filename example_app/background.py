"""Where the shop remembers events and runs its handlers, if not in its database and in requests.

``EXAMPLE_GUARD=redis`` keeps the ids of processed events in Redis. ``EXAMPLE_QUEUE=celery`` runs
the handlers in a worker, which ``celery --app example_app.worker worker`` starts.
"""

from __future__ import annotations

import os
import typing as t

from flask import Flask

from flask_sangho_webhooks import Guard, Queue

USES_REDIS = os.environ.get("EXAMPLE_GUARD") == "redis"
USES_CELERY = os.environ.get("EXAMPLE_QUEUE") == "celery"


def guard() -> Guard | None:
    """RedisGuard on ``FLASK_SANGHO_WEBHOOK_REDIS_URL``, or None for the default."""
    if not USES_REDIS:
        return None

    from flask_sangho_webhooks import RedisGuard

    return RedisGuard()


def queue() -> Queue | None:
    """CeleryQueue, or None to run the handlers in the request."""
    if not USES_CELERY:
        return None

    from flask_sangho_webhooks.celery import CeleryQueue

    return CeleryQueue()


def init_celery(app: Flask) -> t.Any:
    """Make the Celery app of the shop, on the broker that ``FLASK_CELERY__broker_url`` names."""
    import celery

    from flask_sangho_webhooks.celery import BEAT_SCHEDULE

    celery_app = celery.Celery(app.name)
    celery_app.config_from_object(app.config.get("CELERY", {}))
    celery_app.conf.beat_schedule.update(BEAT_SCHEDULE)
    celery_app.flask_app = app
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app
