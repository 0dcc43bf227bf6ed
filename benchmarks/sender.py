"""Delivers new events one after the other until its standard input ends, and says how long each
took, as JSON: ``python -m benchmarks.sender URL``.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import typing as t

from flask import Flask

from . import ours
from .deliveries import environ, event_body, new_id
from .wsgi import deliver

PAUSE = 0.002
PATIENCE = 120


def main(url: str) -> None:
    logging.getLogger("flask_sangho_webhooks").addHandler(logging.NullHandler())
    options: dict[str, t.Any] = {}

    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": PATIENCE}

    app = ours.create_app(
        url, SANGHO_WEBHOOK_LOCK_TIMEOUT=PATIENCE, SQLALCHEMY_ENGINE_OPTIONS=options
    )
    deliver_until_accepted(app)
    over = threading.Event()
    threading.Thread(target=wait_for_end, args=(over,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    taken = []

    while not over.wait(PAUSE):
        taken.append(deliver_until_accepted(app))

    json.dump(taken, sys.stdout)


def wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def deliver_until_accepted(app: Flask) -> tuple[float, float]:
    """When the first attempt began, and how long it took until one was accepted."""
    body = event_body(event_id := new_id())
    started = time.monotonic()

    while time.monotonic() < started + PATIENCE:
        request = environ(event_id, body)

        try:
            deliver(app, [request])
        except RuntimeError:
            time.sleep(PAUSE)
        else:
            break

    return started, time.monotonic() - started


if __name__ == "__main__":
    main(sys.argv[1])
