"""How long a statement waits for a lock, in each database's way."""

from __future__ import annotations

import collections.abc as c
import contextlib
import functools
import typing as t

import sqlalchemy as sa


def milliseconds(timeout: float) -> str:
    """PostgreSQL's way to write it.

    :param timeout: in seconds.
    """
    return f"{max(1, round(timeout * 1000))}ms"


@functools.lru_cache(maxsize=64)
def limit_statement(timeout: float) -> sa.Select[t.Any]:
    """Keep PostgreSQL's ``lock_timeout``, and then set it for the claim.

    :param timeout: in seconds.
    """
    keep = "set_config('sangho.lock_timeout', current_setting('lock_timeout'), true)"
    limit = f"set_config('lock_timeout', '{milliseconds(timeout)}', true)"
    return sa.select(sa.literal_column(keep)).add_columns(sa.literal_column(limit))


class busy_timeout:
    """A context in which SQLite waits for its write lock for our time, and not for the app's own.

    :param timeout: in seconds.
    """

    def __init__(self, connection: sa.Connection, timeout: float) -> None:
        self._driver: t.Any = connection.connection.dbapi_connection
        self._milliseconds = round(timeout * 1000)

    def __enter__(self) -> None:
        (self._previous,) = self._driver.execute("PRAGMA busy_timeout").fetchone()
        self._driver.execute(f"PRAGMA busy_timeout = {self._milliseconds}")

    def __exit__(self, *_: object) -> None:
        self._driver.execute(f"PRAGMA busy_timeout = {self._previous}")


@contextlib.contextmanager
def lock_wait_timeout(connection: sa.Connection, timeout: float) -> c.Iterator[None]:
    """Wait for a lock of InnoDB for our time, in whole seconds, then for the app's own again."""
    setting = "SET SESSION innodb_lock_wait_timeout = "
    previous = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar()
    connection.exec_driver_sql(f"{setting}{max(1, int(timeout))}")

    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"{setting}{previous}")
