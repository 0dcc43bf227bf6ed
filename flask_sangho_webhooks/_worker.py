"""The Flask app and the endpoint that a worker runs an event for."""

from __future__ import annotations

import collections.abc as c
import contextlib
import typing as t

from flask import current_app, has_app_context

from .errors import ConfigError
from .extension import Endpoint, EXTENSION_KEY

if t.TYPE_CHECKING:
    import celery


@contextlib.contextmanager
def app_context(app: celery.Celery) -> c.Iterator[None]:
    """The context that tasks have already, or else that of ``celery_app.flask_app``.

    :raises ConfigError: if there is neither.
    """
    flask_app = getattr(app, "flask_app", None)

    if has_app_context():
        yield
    elif flask_app is not None:
        with flask_app.app_context():
            yield
    else:
        raise ConfigError(
            "The Celery worker has no Flask app. Let tasks run in its context, as Flask's"
            " documentation shows under 'Background Tasks with Celery', or set"
            " celery_app.flask_app."
        )


def find_endpoint(name: str) -> Endpoint:
    """:raises ConfigError: if the app has none of this name."""
    endpoint: Endpoint | None = current_app.extensions.get(EXTENSION_KEY, {}).get(name)

    if endpoint is None:
        raise ConfigError(
            f"The worker's Flask app has no endpoint {name!r}. Register its blueprint, or call"
            " init_app(app), in the worker as well."
        )

    return endpoint
