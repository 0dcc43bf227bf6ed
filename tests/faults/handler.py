"""The handler that all receivers share, and the points at which its process dies."""

from __future__ import annotations

import os
import signal
import threading
import time
import typing as t
import uuid

import sqlalchemy as sa
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import Discard, RetryLater

from .journal import Journal
from .ledger import effect, JUNK, ledger
from .plan import Behaviour, Point, point_of, SLEEP


class HandlerFailed(Exception):
    """Meant to happen."""


class Handler:
    """Writes an event's run to both tables, in the way that the event asks for."""

    def __init__(self, db: SQLAlchemy, journal: Journal) -> None:
        self.db = db
        self.journal = journal
        self._current = threading.local()

    @property
    def run(self) -> str | None:
        """The run that this thread has begun and not ended."""
        return getattr(self._current, "run", None)

    @property
    def arrived(self) -> float:
        """When this thread's delivery did: before the event was claimed."""
        return float(getattr(self._current, "arrived", 0))

    def arrive(self) -> None:
        self.event_id = None
        self._current.arrived = time.time()

    @property
    def event_id(self) -> str | None:
        """The event that this thread works on."""
        return getattr(self._current, "event_id", None)

    @event_id.setter
    def event_id(self, value: str | None) -> None:
        self._current.event_id = value

    def die(self, point: Point, event_id: str | None) -> None:
        """End this process if the event says so, the first time."""
        if event_id is None or point_of(event_id) != point:
            return

        if self.journal.once(f"{event_id}-{point}"):
            self.journal.note("kills", point=point, event=event_id, killed=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, how: str) -> None:
        """Note what became of the run of this thread, if there is one."""
        if self.run is not None:
            self.journal.note("runs", run=self.run, ended=how)
            self._current.run = None

    def __call__(self, event_id: str, does: Behaviour) -> None:
        self.event_id = event_id
        self._current.run = run = uuid.uuid4().hex
        self.journal.note("runs", run=run, event=event_id, arrived=self.arrived)

        try:
            self._run(event_id, does, run)
        except BaseException as error:
            self.end(type(error).__name__)
            raise

    def _run(self, event_id: str, does: Behaviour, run: str) -> None:
        fails = does.startswith("raises") and self.journal.once(f"{event_id}-1")
        fails = fails or (does == "raises_twice" and self.journal.once(f"{event_id}-2"))

        if does == "rolls_back":
            self._write(ledger, event_id, JUNK)
            self.db.session.rollback()
        elif does == "removes":
            self._write(effect, event_id, JUNK)
            self.db.session.remove()

        self._write(ledger, event_id, run)
        self.die("handler", event_id)

        if does == "commits":
            self.db.session.commit()
        elif does == "sleeps" and self.journal.once(f"{event_id}-1"):
            time.sleep(SLEEP)

        self._write(effect, event_id, run)

        if does == "commits_and_raises" and self.journal.once(f"{event_id}-1"):
            self.db.session.commit()
            raise HandlerFailed
        elif does == "retries_later" and self.journal.once(f"{event_id}-1"):
            raise RetryLater(1)
        elif does == "discards":
            raise Discard("It is not wanted.")
        elif fails:
            raise HandlerFailed

    def _write(self, table: sa.Table, event_id: str, run: str) -> None:
        self.db.session.execute(sa.insert(table), {"event_id": event_id, "run": run})


def watch_sql(handler: Handler, engine: sa.Engine, table: str) -> None:
    """Die around the claim and before COMMIT, seen from outside the package.

    :param table: of the guard's records.
    """

    def claimed_by(statement: str, context: t.Any) -> str | None:
        if table not in statement or "INSERT" not in statement or context is None:
            return None

        return str(context.compiled_parameters[0]["event_id"])

    @sa.event.listens_for(engine, "before_cursor_execute")
    def before(
        connection: object, cursor: object, statement: str, values: object, context: t.Any, _: bool
    ) -> None:
        handler.die("claim", claimed_by(statement, context))

    @sa.event.listens_for(engine, "after_cursor_execute")
    def after(
        connection: object, cursor: object, statement: str, values: object, context: t.Any, _: bool
    ) -> None:
        if event_id := claimed_by(statement, context):
            handler.event_id = event_id
            handler.die("claimed", event_id)

    @sa.event.listens_for(engine, "commit")
    def commit(connection: sa.Connection) -> None:
        handler.die("commit", handler.event_id)
