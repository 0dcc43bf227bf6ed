"""A small shop that is paid through Sangho. Serve it with ``flask --app example_app run``."""

from __future__ import annotations

from .app import create_app as create_app
