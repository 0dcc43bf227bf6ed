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
from ..models import MYSQL
from ._claim import utc_now
from .base import Progress

_T = t.TypeVar("_T")

_LOOK_AHEAD = 20_000
"""Keys that are read at a time."""

_ATTEMPTS = 5
_RETRY_PAUSE = 0.2
"""Seconds, times the number of the attempt."""

_MAX_PAUSE = 0.05
"""Seconds for which SQLite's lock is left to others after a batch."""

_LOCK_TIMEOUT = "100ms"


class Cleanup:
    """Deletes the records of a table that are older than an age, from the oldest on.

    A batch is the range of times between two bounds, deleted in a transaction of its own. Each look
    for the next bound begins at the last one: entries that are deleted stay in an index until the
    server has purged them, and a look from the start would walk over all of them. Records of one
    and the same moment, which have no bounds between them, are deleted by their keys.

    Records without a time have no age, and stay. Two cleanups at once do no harm.

    :param begin: makes a connection in a transaction that commits at the end of its block. On MySQL
        and MariaDB it must take no locks on gaps, in which deliveries insert.
    :param age: records older than this are deleted.
    """

    def __init__(
        self,
        table: sa.Table,
        begin: c.Callable[[], contextlib.AbstractContextManager[sa.Connection]],
        age: dt.timedelta,
    ) -> None:
        self.table = table
        self.begin = begin
        self.time: sa.ColumnElement[t.Any] = table.c.processed_at

        with begin() as connection:
            self.cutoff = _cutoff(connection, age)
            self.sqlite = connection.dialect.name == "sqlite"
            self.postgresql = connection.dialect.name == "postgresql"

        if self.sqlite:
            # As text, which is how SQLite compares times: with a fraction or without.
            self.time = sa.type_coerce(self.time, sa.String)

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
        start: sa.ColumnElement[bool] = self.time.is_not(None)

        while True:
            first, bound = self._attempt(functools.partial(self._look, start, batch_size))

            if bound is None:
                # Also what was recorded meanwhile with a time that has been passed.
                batches = self._delete_range(self.expired, batch_size)
            elif bound == first:
                batches = self._delete_by_key(self.time == bound, batch_size)
                start = self.time > bound
            else:
                batches = self._delete_range(start & (self.time < bound) & self.expired, batch_size)
                start = self.time >= bound

            for batch in filter(None, batches):
                total += batch

                if progress is not None:
                    progress(batch)

            if bound is None:
                return total

    def _look(
        self, start: sa.ColumnElement[bool], batch_size: int, connection: sa.Connection
    ) -> t.Any:
        """The time of the first record of a batch, and of the first one behind it, which is None if
        there is no expired one.
        """
        # The cutoff is around the look, not in it: PostgreSQL, without fresh statistics, takes a
        # range with two bounds for so small that it reads and sorts all of it.
        times = sa.select(self.time.label("time")).where(start).order_by(self.time).limit(1)
        behind = times.offset(batch_size).subquery()
        time = sa.type_coerce(behind.c.time, self.table.c.processed_at.type)
        bound = sa.select(behind.c.time).where(time < self.cutoff)
        look = sa.select(times.scalar_subquery(), bound.scalar_subquery())
        return connection.execute(look).one()

    def _delete_range(self, doomed: sa.ColumnElement[bool], batch_size: int) -> c.Iterator[int]:
        try:
            yield from self._delete(doomed)
        except GuardUnavailable:
            if not self.postgresql:
                raise

            yield from self._delete_by_key(doomed, batch_size)

    def _delete_by_key(self, doomed: sa.ColumnElement[bool], batch_size: int) -> c.Iterator[int]:
        keys = sa.select(self.table.c.event_id).where(doomed).limit(_LOOK_AHEAD)
        keys = keys.order_by(self.time).with_for_update(skip_locked=True)

        while True:
            found = self._attempt(lambda connection: connection.scalars(keys).all())
            deleted = 0

            for start in range(0, len(found), batch_size):
                for batch in self._delete(self._with_keys(found[start : start + batch_size])):
                    deleted += batch
                    yield batch

            # All that was found may be locked by others.
            if len(found) < _LOOK_AHEAD or not deleted:
                return

    def _delete(self, doomed: sa.ColumnElement[bool]) -> c.Iterator[int]:
        started = time.monotonic()
        statement = sa.delete(self.table).where(doomed)
        yield self._attempt(functools.partial(self._execute, statement))

        if self.sqlite:
            # It has one lock for all, and whoever waits for it asks at intervals only.
            time.sleep(min(time.monotonic() - started, _MAX_PAUSE))

    def _execute(self, statement: sa.Delete, connection: sa.Connection) -> int:
        if self.postgresql:
            # For records that others hold. What another cleanup has locked, it is about to delete.
            connection.execute(sa.select(sa.func.set_config("lock_timeout", _LOCK_TIMEOUT, True)))

        return connection.execute(statement.execution_options(preserve_rowcount=True)).rowcount

    def _with_keys(self, keys: c.Sequence[str]) -> sa.ColumnElement[bool]:
        event_id = self.table.c.event_id

        if not self.postgresql:
            return event_id.in_(keys) & self.expired

        # Arrays, not IN: they keep the plan on the primary key whatever the statistics say.
        array = sa.ARRAY(event_id.type)
        locked = sa.select(event_id).where(event_id == sa.any_(sa.literal(keys, array)))
        locked = locked.where(self.expired).with_for_update(skip_locked=True)
        return event_id == sa.any_(sa.func.array(locked.scalar_subquery(), type_=array))

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
    if connection.dialect.name in MYSQL:
        # The server reckons: the session's zone may have changed its offset within the age.
        seconds = sa.func.unix_timestamp() - int(age.total_seconds())
        cutoff = sa.func.from_unixtime(seconds, type_=sa.TIMESTAMP())
        return connection.execute(sa.select(cutoff)).scalar_one()

    now: dt.datetime = connection.execute(sa.select(utc_now(connection.dialect.name))).scalar_one()
    return now - age
