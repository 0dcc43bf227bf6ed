"""Deleting expired records a batch at a time, beside running deliveries."""

from __future__ import annotations

import collections.abc as c
import contextlib
import datetime as dt
import functools
import itertools
import time
import typing as t

import sqlalchemy as sa

from ..errors import GuardUnavailable
from ._claim import utc_now
from .base import Progress

_T = t.TypeVar("_T")

_LOOK_AHEAD = 20_000
_ATTEMPTS = 5
_RETRY_PAUSE = 0.2
_MAX_PAUSE = 0.05


class Cleanup:
    """Deletes the records of a table that are older than an age, from the oldest on.

    The keys of many records are read at once and deleted batch by batch, each in a transaction of
    its own. Deleting by key takes no lock on the ranges in which deliveries insert. Looking once
    for many batches keeps the work in proportion to the records: entries that are deleted stay in
    an index until the server has purged them, and every look walks over those with the time that
    the last one has reached.

    A batch checks the age again, so that two cleanups at once, or a record that was forgotten and
    made anew, do no harm. Records without a time have no age, and stay.

    :param begin: makes a connection in a transaction that commits at the end of its block.
    :param age: from which on a record is deleted.
    """

    def __init__(
        self,
        table: sa.Table,
        begin: c.Callable[[], contextlib.AbstractContextManager[sa.Connection]],
        age: dt.timedelta,
    ) -> None:
        self.table = table
        self.begin = begin

        with begin() as connection:
            self.cutoff = _cutoff(connection, age)
            self.sqlite = connection.dialect.name == "sqlite"

        self.expired = table.c.processed_at < self.cutoff

    def count(self) -> int:
        """How many records are expired."""
        count = sa.select(sa.func.count()).select_from(self.table).where(self.expired)

        with self.begin() as connection:
            return connection.execute(count).scalar_one()

    def run(self, batch_size: int, progress: Progress | None = None) -> int:
        """Delete the expired records.

        :return: how many this run deleted; another one at the same time may have deleted more.
        """
        total = 0
        reached: dt.datetime | None = None

        while True:
            found = self._attempt(functools.partial(self._look, reached))
            deleted = 0

            for start in range(0, len(found), batch_size):
                keys = [row.event_id for row in found[start : start + batch_size]]
                started = time.monotonic()
                batch = self._attempt(functools.partial(self._delete, keys))
                deleted += batch

                if progress is not None:
                    progress(batch)

                if self.sqlite:
                    # It has one lock for all, and whoever waits for it asks at intervals only.
                    time.sleep(min(time.monotonic() - started, _MAX_PAUSE))

            total += deleted

            # All that was found may be locked by others.
            if len(found) < _LOOK_AHEAD or (not deleted and found[-1].processed_at == reached):
                return total

            reached = found[-1].processed_at

    def _look(self, reached: dt.datetime | None, connection: sa.Connection) -> c.Sequence[t.Any]:
        event_id, processed_at = self.table.c.event_id, self.table.c.processed_at
        # One bound, and the other around it: PostgreSQL, without fresh statistics, takes a range
        # with two for so small that it reads and sorts all of it. SQLite purges at once, and
        # compares times as text, with a fraction or without.
        start = self.expired if reached is None or self.sqlite else processed_at >= reached
        oldest = sa.select(event_id, processed_at).where(start)
        oldest = oldest.order_by(processed_at).limit(_LOOK_AHEAD)
        found = oldest.subquery()
        expired = sa.select(found).where(found.c.processed_at < self.cutoff)
        return connection.execute(expired.order_by(found.c.processed_at)).all()

    def _delete(self, keys: list[str], connection: sa.Connection) -> int:
        event_id = self.table.c.event_id

        if connection.dialect.name == "postgresql":
            # Arrays, not IN: they keep the plan on the primary key whatever the statistics say.
            # What another cleanup has locked, it is about to delete.
            array = sa.ARRAY(event_id.type)
            given = sa.literal(keys, array)
            locked = sa.select(event_id).where(event_id == sa.any_(given), self.expired)
            locked = locked.with_for_update(skip_locked=True)
            doomed = event_id == sa.any_(sa.func.array(locked.scalar_subquery(), type_=array))
        else:
            doomed = sa.and_(event_id.in_(keys), self.expired)

        return connection.execute(sa.delete(self.table).where(doomed)).rowcount

    def _attempt(self, step: c.Callable[[sa.Connection], _T]) -> _T:
        for attempt in itertools.count(1):
            try:
                with self.begin() as connection:
                    return step(connection)
            except GuardUnavailable:
                if attempt == _ATTEMPTS:
                    raise

                time.sleep(attempt * _RETRY_PAUSE)

        raise AssertionError


def _cutoff(connection: sa.Connection, age: dt.timedelta) -> dt.datetime:
    """The time of records of this age, as ``processed_at`` holds it."""
    if connection.dialect.name in ("mysql", "mariadb"):
        # The server reckons: the session's zone may have changed its offset within the age.
        seconds = sa.func.unix_timestamp() - int(age.total_seconds())
        cutoff = sa.func.from_unixtime(seconds, type_=sa.TIMESTAMP())
        return connection.execute(sa.select(cutoff)).scalar_one()

    now: dt.datetime = connection.execute(sa.select(utc_now(connection.dialect.name))).scalar_one()
    return now - age
