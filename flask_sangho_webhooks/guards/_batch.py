"""How much a cleanup deletes at a time, and with what."""

from __future__ import annotations

import collections.abc as c
import contextlib

import sqlalchemy as sa

_LEAST = 5_000
"""Records of the first batch, and of those that take long: fewer hardly take less."""

_CACHE = -65_536
"""SQLite's cache during a batch; below zero it is in KiB."""


class BatchSize:
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


@contextlib.contextmanager
def large_cache(connection: sa.Connection) -> c.Iterator[None]:
    """The ids are random, so a batch changes most pages of their index. What the cache does not
    hold is written, and read again, several times.
    """
    before = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    connection.exec_driver_sql(f"PRAGMA cache_size = {min(before, _CACHE)}")

    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size = {before}")
