"""Beginning and ending the guard's transaction, with the quirks of databases and drivers."""

from __future__ import annotations

import contextlib
import threading
import typing as t
import weakref

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from ..errors import ConfigError, GuardUnavailable, WebhookError
from ..models import MYSQL
from ._transient import refuse_transient


def begin(connection: sa.Connection) -> sa.Transaction:
    """Begin a transaction, or a savepoint where the connection is in one already.

    :raises ConfigError: if the connection commits each statement by itself.
    """
    is_sqlite = connection.dialect.name == "sqlite"

    if connection.in_transaction():
        if is_sqlite:
            begin_on_sqlite(connection)

        return connection.begin_nested()

    transaction = connection.begin()

    if is_sqlite:
        begin_on_sqlite(connection)
    elif _commits_by_itself(connection):
        raise ConfigError(
            "The database commits each statement by itself, so an event cannot be recorded"
            " together with what its handlers write. Remove the AUTOCOMMIT isolation level, or the"
            " driver's 'autocommit', from SQLALCHEMY_ENGINE_OPTIONS."
        )

    return transaction


def begin_on_sqlite(connection: sa.Connection, name: str | None = None) -> None:
    """sqlite3 begins no transaction before a SAVEPOINT, and SQLite commits when the outermost
    savepoint is released: a rollback of the transaction around it would come too late. Without an
    isolation level, sqlite3 begins no transaction at all.
    """
    driver: t.Any = connection.connection.dbapi_connection

    if getattr(driver, "in_transaction", True) is False:
        driver.execute("BEGIN")


def _commits_by_itself(connection: sa.Connection) -> bool:
    driver = connection.connection.dbapi_connection
    get_autocommit = getattr(driver, "get_autocommit", None)  # the drivers of MySQL and MariaDB
    return bool(
        getattr(driver, "autocommit", False) if get_autocommit is None else get_autocommit()
    )


class GuardTransaction:
    """A context with a transaction that is rolled back unless it is committed: a savepoint, where
    the connection is in a transaction already.

    :param bind: an engine, or a connection that somebody else closes.
    :param lock_timeout: seconds to wait for other users of an in-memory database.
    :param hint: that an error's message ends with if the transaction cannot be begun.
    :param read_committed: on MySQL and MariaDB, take no locks on gaps between rows.
    :raises GuardUnavailable: if the database cannot be reached.
    """

    connection: sa.Connection
    current: sa.Transaction

    def __init__(
        self,
        bind: sa.Engine | sa.Connection,
        lock_timeout: float,
        hint: str = "",
        *,
        read_committed: bool = False,
    ) -> None:
        self._bind = bind
        self._lock_timeout = lock_timeout
        self._hint = hint
        self._read_committed = read_committed
        self._owned: sa.Connection | None = None
        self._lock: threading.RLock | None = None

    def __enter__(self) -> GuardTransaction:
        try:
            self.connection = self._connect(self._bind)
            self.current = begin(self.connection)
        except BaseException as error:
            self._close()
            refuse_transient(error, self._hint)
            raise

        return self

    def __exit__(self, *_: object) -> None:
        try:
            # Closing an own connection rolls back, and spares the pool another rollback.
            if self._owned is None or (
                not self.current.is_active and self.connection.get_transaction() is not None
            ):
                self.roll_back()
        finally:
            self._close()

    def _connect(self, bind: sa.Engine | sa.Connection) -> sa.Connection:
        if isinstance(bind, sa.Connection):
            return bind

        if isinstance(bind.pool, sa.StaticPool):
            self._lock = _lock_static_pool(bind.pool, self._lock_timeout)

        self._owned = connection = bind.connect()

        if self._read_committed and connection.dialect.name in MYSQL:
            connection.execution_options(isolation_level="READ COMMITTED")

        return connection

    def _close(self) -> None:
        connection = self._owned

        try:
            if connection is not None:
                try:
                    connection.close()
                except BaseException as error:
                    # SQLAlchemy 2.0 takes the transaction for ended, and would give the connection
                    # back to the pool as it is.
                    if (transaction := connection.get_transaction()) is not None:
                        roll_back(connection, transaction)

                    connection.close()

                    # A connection that was lost has nothing to roll back.
                    if not isinstance(error, sa_exc.SQLAlchemyError):
                        raise
        finally:
            if self._lock is not None:
                self._lock.release()

    def begin_again(self) -> None:
        """Begin anew after a rollback."""
        begun = self.connection.get_transaction()

        # A handler that has kept the connection may have begun a transaction on it.
        if begun is None or isinstance(self.current, sa.NestedTransaction):
            self.current = begin(self.connection)
        else:
            self.current = begun

    def roll_back_all(self) -> None:
        """Roll back, and also what a handler that has kept the connection has begun since."""
        if self.current.is_active:
            self.current.rollback()
        elif not isinstance(self.current, sa.NestedTransaction):
            self.connection.rollback()

    def roll_back(self) -> None:
        """Roll back unless committed."""
        roll_back(self.connection, self.current)


def ended() -> WebhookError:
    """What to raise if the claim went with a rollback that was not the handlers' own."""
    return WebhookError(
        "The database has ended or aborted the transaction of this event: a handler caught a"
        " database error and went on. Call db.session.rollback() in its except block, or let the"
        " error through. Nothing was recorded."
    )


def roll_back(connection: sa.Connection, transaction: sa.Transaction) -> None:
    """Roll back unless committed. A lost connection has nothing to roll back, and must not hide
    the exception on its way.
    """
    with contextlib.suppress(sa_exc.SQLAlchemyError):
        if transaction.is_active:
            transaction.rollback()

    # After a COMMIT that has failed, SQLAlchemy takes the transaction for ended, and the pool does
    # not reset the connection. In the database it is still open: the claim would be seen by the
    # next delivery on this connection, and be committed with it.
    if connection.get_transaction() is transaction and not connection.invalidated:
        try:
            connection.dialect.do_rollback(connection.connection)
        except Exception:
            connection.invalidate()


_static_pool_locks: weakref.WeakKeyDictionary[sa.Pool, threading.RLock] = (
    weakref.WeakKeyDictionary()
)


def _lock_static_pool(pool: sa.Pool, timeout: float) -> threading.RLock:
    """SQLite in memory has one connection, which all threads share, and so would share one
    transaction: a duplicate would see the first run's claim as committed.
    """
    lock = _static_pool_locks.setdefault(pool, threading.RLock())

    if not lock.acquire(timeout=timeout):
        raise GuardUnavailable("The in-memory database is in use by another thread.")

    return lock
