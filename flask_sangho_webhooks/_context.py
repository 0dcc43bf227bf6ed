"""The app and the request themselves: each use of Flask's proxies looks them up again."""

from __future__ import annotations

from flask import current_app, Flask, Request, request


def this_app() -> Flask:
    """The current app.

    :raises RuntimeError: outside an app context.
    """
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    return app


def this_request() -> Request:
    """The current request.

    :raises RuntimeError: outside a request.
    """
    posted: Request = request._get_current_object()  # type: ignore[attr-defined]
    return posted
