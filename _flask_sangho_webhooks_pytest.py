"""The pytest plugin: a fixture ``sangho`` that delivers events to the app of the fixture ``app``.

Outside the package: pytest imports every plugin that is installed, for every project, and the
package would bring Flask and SQLAlchemy with it, before any gevent or coverage has begun.
"""

from __future__ import annotations

import typing as t

import pytest

if t.TYPE_CHECKING:
    from flask import Flask

    from flask_sangho_webhooks.testing import SanghoTestClient


@pytest.fixture
def sangho(app: Flask) -> SanghoTestClient:
    """Delivers events to the app, as Sangho does.

    Write a fixture ``app`` that returns yours. For an endpoint with a name, make a
    ``flask_sangho_webhooks.testing.SanghoTestClient(app, name="connect")``.
    """
    from flask_sangho_webhooks.testing import SanghoTestClient

    return SanghoTestClient(app)
