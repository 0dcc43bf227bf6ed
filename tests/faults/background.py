"""The queue of the receiver that hands events to Celery."""

from __future__ import annotations

from flask import Flask

from flask_sangho_webhooks.celery import CeleryQueue

from ..celery_support import make_celery
from ..celery_support import Settings as CelerySettings
from .settings import Settings

VISIBILITY_TIMEOUT = 4
"""Seconds. As a broker, Redis gives a message of a worker that is gone to another one after it."""


def make_queue(app: Flask, settings: Settings) -> CeleryQueue:
    """Give an app a Celery app, and a queue on it."""
    make_celery(
        app,
        CelerySettings(
            settings.database_url,
            settings.broker_url,
            settings.folder,
            settings.queue,
            VISIBILITY_TIMEOUT,
        ),
    )
    return CeleryQueue()
