"""Which errors of a database pass by themselves."""

from __future__ import annotations

import sqlite3

import sqlalchemy.exc as sa_exc

from ..errors import GuardUnavailable

# SQLSTATE classes: connection, rollback (serialization failure, deadlock), resources, operator
# intervention (shutdown, cancel), system. 55P03 is "lock not available", 25006 a server that has
# become a replica, 25P03 and 25P04 a transaction that has been idle, or has taken, for too long.
_TRANSIENT_STATES = ("08", "40", "53", "57", "58", "55P03", "25006", "25P03", "25P04")
# SQLite's primary result codes: BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, CANTOPEN, PROTOCOL.
_TRANSIENT_SQLITE = {5, 6, 7, 8, 10, 13, 14, 15}
# MySQL and MariaDB: connection closed, too many connections, shutdown, lock wait timeout, deadlock,
# read-only replica, interrupted, connection killed, statement timeouts; 2000 to 2999 are the
# client's own, of the connection.
_TRANSIENT_MYSQL = {0, 1040, 1053, 1205, 1213, 1290, 1317, 1927, 1969, 3024, 4031}
_MYSQL_CLIENT = range(2000, 3000)

LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's state of a statement that has waited for a lock for too long."""

LOCK_WAIT_TIMEOUT = 1205
"""The same of MySQL and MariaDB."""

DEADLOCK = 1213
"""The error of MySQL and MariaDB that comes with a rollback of the whole transaction."""


def is_transient(error: sa_exc.SQLAlchemyError) -> bool:
    """Whether the same statement may succeed later, with nothing fixed."""
    if isinstance(error, sa_exc.TimeoutError):  # the pool has no free connection
        return True

    if not isinstance(error, sa_exc.DBAPIError):
        return False

    if error.connection_invalidated:
        return True

    result_code = getattr(error.orig, "sqlite_errorcode", None)
    number = error_code(error)
    state = sqlstate(error)

    if result_code is not None:
        return (result_code & 0xFF) in _TRANSIENT_SQLITE

    # Before the state: PyMySQL has one as well, which says less.
    if number is not None:
        return number in _TRANSIENT_MYSQL or number in _MYSQL_CLIENT

    if state is not None:
        return str(state).startswith(_TRANSIENT_STATES)

    if isinstance(error.orig, sqlite3.Error):  # no code: a misuse of the driver
        return False

    return isinstance(error, (sa_exc.OperationalError, sa_exc.InterfaceError))


def sqlstate(error: sa_exc.DBAPIError) -> object:
    """The code that PostgreSQL gives an error, as psycopg, psycopg2 or pg8000 tells it."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    arguments = getattr(error.orig, "args", ())

    if state is None and arguments and isinstance(arguments[0], dict):
        return arguments[0].get("C")

    return state


class unavailable:
    """A context that translates the database's passing troubles into :exc:`.GuardUnavailable`.

    :param hint: that the message ends with.
    """

    def __init__(self, hint: str = "") -> None:
        self.hint = hint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        refuse_transient(error, self.hint)


def refuse_transient(error: BaseException | None, hint: str = "") -> None:
    """Raise :exc:`.GuardUnavailable` if an error is a passing trouble of the database."""
    if isinstance(error, sa_exc.SQLAlchemyError) and is_transient(error):
        raise GuardUnavailable(
            f"The database is unreachable or locked ({describe(error)}).{hint}"
        ) from error


def describe(error: sa_exc.SQLAlchemyError) -> str:
    """An error's kind and code; its text may hold what was to be written."""
    kind = type(getattr(error, "orig", None) or error).__name__
    code = None

    if isinstance(error, sa_exc.DBAPIError):
        code = error_code(error) or sqlstate(error) or getattr(error.orig, "sqlite_errorname", None)

    return kind if code is None else f"{kind} {code}"


def error_code(error: sa_exc.DBAPIError) -> int | None:
    """The number that MySQL and MariaDB give an error."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None
