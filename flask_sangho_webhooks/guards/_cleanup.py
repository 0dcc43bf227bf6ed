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

_MAX_KEYS = 5_000
"""Keys in one statement."""

_LEAST = 5_000
"""Records of the first batch, and of those that take long: fewer hardly take less."""

_MAX_RANGE = 20_000
"""Records of a batch on MySQL and MariaDB: for a large part of the table they would rather look at
every row, and wait for those of deliveries that are not finished."""

_ATTEMPTS = 5
_RETRY_PAUSE = 0.2
"""Seconds, times the number of the attempt."""

_MAX_PAUSE = 0.12
"""Seconds for which SQLite's lock is left to others after a batch. They ask every 0.1 at least."""

_CACHE = -65_536
"""SQLite's cache during a batch; below zero it is in KiB."""

_LOCK_TIMEOUT = "100ms"


class _Size:
    """How many records the next batch has: as many as take the time that it may.

    :param greatest: that it ever is.
    :param seconds: for which a batch may hold its locks.
    """

    def __init__(self, greatest: int, seconds: float) -> None:
        self.greatest = greatest
        self.seconds = seconds
        self.now = min(_LEAST, greatest)

    def learn(self, deleted: int, seconds: float) -> None:
        """Take in how long a batch took. One with few records left in it says little of others."""
        if deleted * 2 < self.now:
            return

        factor = min(max(self.seconds / max(seconds, 0.001), 0.5), 2)
        self.now = min(max(round(self.now * factor), _LEAST), self.greatest)


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
    :param seconds: for which a batch may hold its locks.
    """

    def __init__(
        self,
        table: sa.Table,
        begin: c.Callable[[], contextlib.AbstractContextManager[sa.Connection]],
        age: dt.timedelta,
        seconds: float,
    ) -> None:
        self.table = table
        self.begin = begin
        self.seconds = seconds
        self.locked = 0.0
        self.time: sa.ColumnElement[t.Any] = table.c.processed_at

        with begin() as connection:
            self.cutoff = _cutoff(connection, age)
            self.sqlite = connection.dialect.name == "sqlite"
            self.postgresql = connection.dialect.name == "postgresql"
            self.mysql = connection.dialect.name in MYSQL

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

        :param batch_size: records in a transaction, at most.
        :return: how many this run deleted; another one at the same time may have deleted more.
        """
        total = 0
        start: sa.ColumnElement[bool] = self.time.is_not(None)
        size = _Size(min(batch_size, _MAX_RANGE) if self.mysql else batch_size, self.seconds)

        while True:
            first, bound = self._attempt(functools.partial(self._look, start, size.now))

            if bound is None:
                # Also what was recorded meanwhile with a time that has been passed.
                batches = self._delete_range(self.expired, size)
            elif bound == first:
                batches = self._delete_by_key(self.time == bound, size)
                start = self.time > bound
            else:
                batches = self._delete_range(start & (self.time < bound) & self.expired, size)
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

    def _delete_range(self, doomed: sa.ColumnElement[bool], size: _Size) -> c.Iterator[int]:
        try:
            yield self._delete(sa.delete(self.table).where(doomed), size)
        except GuardUnavailable:
            if not self.postgresql:
                raise

            yield from self._delete_by_key(doomed, size)

    def _delete_by_key(self, doomed: sa.ColumnElement[bool], size: _Size) -> c.Iterator[int]:
        step = min(size.now, _MAX_KEYS)
        keys = sa.select(self.table.c.event_id).where(doomed).limit(_LOOK_AHEAD)
        keys = keys.order_by(self.time).with_for_update(skip_locked=True)

        while True:
            found = self._attempt(lambda connection: connection.scalars(keys).all())
            deleted = 0

            for start in range(0, len(found), step):
                doomed_keys = self._with_keys(found[start : start + step])
                batch = self._delete(sa.delete(self.table).where(doomed_keys))
                deleted += batch
                yield batch

            # All that was found may be locked by others.
            if len(found) < _LOOK_AHEAD or not deleted:
                return

    def _delete(self, statement: sa.Delete, size: _Size | None = None) -> int:
        deleted = self._attempt(functools.partial(self._execute, statement))
        seconds = time.monotonic() - self.locked

        if size is not None:
            size.learn(deleted, seconds)

        if self.sqlite:
            # It has one lock for all, and whoever waits for it asks at intervals only.
            time.sleep(min(seconds, _MAX_PAUSE))

        return deleted

    def _execute(self, statement: sa.Delete, connection: sa.Connection) -> int:
        with contextlib.ExitStack() as stack:
            if self.postgresql:
                # For records that others hold. What another cleanup has locked, it is about to
                # delete.
                timeout = sa.func.set_config("lock_timeout", _LOCK_TIMEOUT, True)
                connection.execute(sa.select(timeout))
            elif self.sqlite:
                stack.enter_context(_large_cache(connection))
                # Takes the lock: waiting for it is not the batch's own time.
                connection.execute(sa.delete(self.table).where(sa.false()))

            self.locked = time.monotonic()
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


@contextlib.contextmanager
def _large_cache(connection: sa.Connection) -> c.Iterator[None]:
    """The ids are random, so a batch changes most pages of their index. What the cache does not
    hold is written, and read again, several times.
    """
    before = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    connection.exec_driver_sql(f"PRAGMA cache_size = {min(before, _CACHE)}")

    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size = {before}")
