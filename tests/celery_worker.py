"""What a worker of the tests loads."""

from __future__ import annotations

import logging
import os
import signal
import threading
import typing as t

import sqlalchemy as sa

from .celery_support import CeleryShop, Settings

shop = CeleryShop(Settings.load())
app = shop.celery


@app.task(name="tests.look_for")  # type: ignore[untyped-decorator]
def look_for(note: str) -> None:
    """Note whether a row is there."""
    found = shop.db.session.scalar(sa.select(shop.Grant.id).filter_by(note=note))
    shop._note("looks", "found" if found else "missing", note)


def end_with_the_tests() -> None:
    """The tests hold the other end of this pipe, and never write."""
    # Not sys.stdin, whose lock the processes of the pool would inherit.
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


class OutcomeNotes(logging.Handler):
    """Notes the outcomes in the log."""

    def emit(self, record: logging.LogRecord) -> None:
        values = vars(record)

        if "outcome" in values and values["event_type"] and values["duration_ms"] >= 0:
            shop._note("outcomes", values["event_id"], values["outcome"])


logging.getLogger("flask_sangho_webhooks").addHandler(OutcomeNotes())
threading.Thread(target=end_with_the_tests, daemon=True).start()

__all__: t.Final = ["app"]
