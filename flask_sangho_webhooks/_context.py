"""The app and the request themselves: each use of Flask's proxies looks them up again."""

from __future__ import annotations

import collections.abc as c

from flask import current_app, Flask, Request, request

# The stubs know of what is behind a proxy, and not of the proxy's own method.
this_app: c.Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
"""Gives the current app. Raises RuntimeError outside an app context."""

this_request: c.Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""Gives the current request. Raises RuntimeError outside a request."""
