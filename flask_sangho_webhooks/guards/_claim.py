"""Claiming an event by inserting its id: one way for each database.

A dialect is imported when it is used: each one imports all of its drivers' dialects, which takes
longer than the rest of the package.
"""

from __future__ import annotations

import collections.abc as c
import enum
import functools
import hashlib
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import Insert

from ..event import Event
from ._conflict import means_duplicate, select_id
from ._driver import execute_first, Found, unprepared
from ._timeouts import busy_timeout, limit_statement, lock_wait_timeout
from ._transient import error_code, LOCK_WAIT_TIMEOUT


class Claim(enum.Enum):
    """The answer to an attempt to claim an event."""

    OURS = enum.auto()
    DUPLICATE = enum.auto()
    IN_PROGRESS = enum.auto()


def claim(connection: sa.Connection, table: sa.Table, event: Event, timeout: float) -> Claim:
    """Insert the event's id. The insert decides; the table is read only after a conflict.

    :param connection: in a transaction that ends with the handlers.
    :param timeout: seconds to wait for a lock, where the database makes one wait at all.
    :raises sqlalchemy.exc.DBAPIError: whatever else the database says.
    """
    dialect = connection.dialect

    if dialect.name == "postgresql":
        return _postgresql(connection, table, event, timeout)

    if dialect.name == "sqlite":
        return _sqlite(connection, table, event, timeout)

    if getattr(dialect, "is_mariadb", False):
        return _mariadb(connection, table, event)

    if dialect.name == "mysql":
        return _mysql(connection, table, event, timeout)

    return _generic(connection, table, event)


def utc_now(dialect: str) -> sa.ColumnElement[t.Any]:
    """The present in UTC by the database's clock, as the column ``processed_at`` holds it.

    A ``TIMESTAMP`` of MySQL and MariaDB holds an instant and is converted to the zone of the
    database session in both directions, so the session's own time is the right one there.
    """
    if dialect == "postgresql":
        return sa.func.timezone(sa.literal_column("'utc'"), sa.func.now(), type_=sa.TIMESTAMP())

    return sa.func.current_timestamp()


def lock_key(table: sa.Table, event_id: str) -> int:
    """Of PostgreSQL's advisory lock. Two endpoints, with a table each, may run the same event at
    the same time. To hash it here takes less time than a call of the server's function.
    """
    name = (table.fullname + ":" + event_id).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big", signed=True)


def _row(table: sa.Table, dialect: str) -> dict[str, t.Any]:
    return {
        "event_id": sa.bindparam("event_id", type_=table.c.event_id.type),
        "event_type": sa.bindparam("event_type", type_=table.c.event_type.type),
        "processed_at": utc_now(dialect),
    }


def _parameters(event: Event) -> dict[str, str]:
    return {"event_id": event.id, "event_type": event.type}


# ------------------------------------------------------------------ PostgreSQL


@functools.cache
def _postgresql_statement(
    table: sa.Table, *, sets_back: bool = False, is_prepared: bool = False
) -> Insert:
    r"""Attempt and claim.

    A plain insert of an id that another transaction has inserted waits until that one ends, and a
    worker with it. An advisory lock of the transaction says at once that the id is taken:

    ====================================  ==========================================
    first delivery                        duplicate
    ====================================  ==========================================
    BEGIN; lock(id): yes; INSERT: 1 row
    … handler …                           BEGIN; lock(id): no → in progress; ROLLBACK
    COMMIT (ends the lock)
    \                                     BEGIN; lock(id): yes; INSERT: 0 rows → duplicate
    ====================================  ==========================================

    The insert can still wait for a row that someone else inserts without the lock, such as the
    code that this extension replaces, or for a lock on the table. ``lock_timeout`` bounds that.

    :param sets_back: whether a row that is inserted sets the timeout back to what
        :func:`limit_statement` has kept. If there is none, a rollback follows.
    :param is_prepared: whether nothing is to be inserted where the table's name has come to stand
        for another one, as when one is made in a schema that comes earlier in the ``search_path``:
        a prepared statement stays with the table that it was planned for.
    """
    from sqlalchemy.dialects import postgresql

    row = _row(table, "postgresql")
    key = sa.bindparam("lock_key", type_=sa.BigInteger)
    locked = sa.func.pg_try_advisory_xact_lock(key, type_=sa.Boolean)
    condition = sa.and_(_names_same_table(table), locked) if is_prepared else locked

    insert = (
        postgresql.insert(table)
        .from_select(list(row), sa.select(*row.values()).where(condition))
        .on_conflict_do_nothing(index_elements=[table.c.event_id])
        .execution_options(preserve_rowcount=True)
    )

    if not sets_back:
        return insert

    setting = "set_config('lock_timeout', current_setting('sangho.lock_timeout'), true)"
    return insert.returning(sa.literal_column(setting))


def _names_same_table(table: sa.Table) -> sa.ColumnElement[bool]:
    """The cast is made when the statement is planned, the call when it is executed."""
    from sqlalchemy.dialects import postgresql

    # Another paramstyle has it double percent signs, and so has the literal.
    dialect: sa.Dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # by SQLAlchemy
    name = dialect.identifier_preparer.format_table(table)
    escaped = name.replace("\\", "\\\\").replace("'", "''")
    literal: sa.ColumnElement[str] = sa.literal_column(f"E'{escaped}'")
    return sa.func.to_regclass(literal) == sa.cast(literal, postgresql.REGCLASS)


def _postgresql(connection: sa.Connection, table: sa.Table, event: Event, timeout: float) -> Claim:
    parameters = {**_parameters(event), "lock_key": lock_key(table, event.id)}
    select = select_id(table)
    found: Found | None = None

    if connection.dialect.driver == "psycopg":
        insert = _postgresql_statement(table)
        prepared = _postgresql_statement(table, is_prepared=True)
        found = _in_one_trip()(connection, insert, prepared, select, parameters, timeout)

    if found is None:
        insert = _postgresql_statement(table, sets_back=True)

        with unprepared(connection):
            execute_first(connection, limit_statement(timeout), {})
            found = _insert_or_find(connection, insert, select, parameters)

    if found.is_inserted:
        return Claim.OURS

    # Without the lock, and yet recorded: two duplicates of a processed event have met.
    return Claim.DUPLICATE if found.event_id == event.id else Claim.IN_PROGRESS


@functools.cache
def _in_one_trip() -> c.Callable[..., Found | None]:
    """With psycopg, which need not be there. To import it again takes time in each delivery."""
    from ._psycopg import insert_or_find

    return insert_or_find


def _insert_or_find(
    connection: sa.Connection,
    insert: Insert,
    select: sa.Select[t.Any],
    parameters: c.Mapping[str, object],
) -> Found:
    if execute_first(connection, insert, parameters).rowcount == 1:
        return Found(is_inserted=True)

    row = execute_first(connection, select, {"event_id": parameters["event_id"]}).row
    return Found(is_inserted=False, event_id=None if row is None else row[0])


# ---------------------------------------------------------------------- SQLite


@functools.cache
def _sqlite_statement(table: sa.Table) -> Insert:
    from sqlalchemy.dialects import sqlite

    return (
        sqlite.insert(table)
        .values(_row(table, "sqlite"))
        .on_conflict_do_nothing(index_elements=[table.c.event_id])
        .execution_options(preserve_rowcount=True)
    )


def _sqlite(connection: sa.Connection, table: sa.Table, event: Event, timeout: float) -> Claim:
    with busy_timeout(connection, timeout):
        reply = execute_first(connection, _sqlite_statement(table), _parameters(event))

    return Claim.OURS if reply.rowcount == 1 else Claim.DUPLICATE


# ---------------------------------------------------------- MariaDB and MySQL

DUPLICATE_ENTRY = 1062


class _NoWaitInsert(Insert):
    """Fails at once where another transaction has inserted the id or locked the gap it belongs in;
    the session's own timeout stays as it is.
    """

    inherit_cache = True


@compiles(_NoWaitInsert)
def _compile_no_wait_insert(element: _NoWaitInsert, compiler: t.Any, **kwargs: t.Any) -> str:
    insert: str = compiler.visit_insert(element, **kwargs)
    return f"SET STATEMENT innodb_lock_wait_timeout=0 FOR {insert}"


@functools.cache
def _insert_statement(table: sa.Table, kind: type[Insert]) -> Insert:
    return kind(table).values(_row(table, "other"))


def _mariadb(connection: sa.Connection, table: sa.Table, event: Event) -> Claim:
    return _insert(connection, table, _insert_statement(table, _NoWaitInsert), event)


def _mysql(connection: sa.Connection, table: sa.Table, event: Event, timeout: float) -> Claim:
    with lock_wait_timeout(connection, timeout):
        return _insert(connection, table, _insert_statement(table, Insert), event)


def _insert(connection: sa.Connection, table: sa.Table, statement: Insert, event: Event) -> Claim:
    try:
        execute_first(connection, statement, _parameters(event))
    except sa_exc.OperationalError as error:
        if error_code(error) == LOCK_WAIT_TIMEOUT:
            return Claim.IN_PROGRESS

        raise
    except sa_exc.IntegrityError as error:
        if error_code(error) != DUPLICATE_ENTRY:
            raise

        return _duplicate(connection, table, event, error)

    return Claim.OURS


# ------------------------------------------------------------------ the others


def _generic(connection: sa.Connection, table: sa.Table, event: Event) -> Claim:
    statement = _insert_statement(table, Insert)

    try:
        with connection.begin_nested():
            connection.execute(statement, _parameters(event))
    except sa_exc.IntegrityError as error:
        return _duplicate(connection, table, event, error)

    return Claim.OURS


def _duplicate(
    connection: sa.Connection, table: sa.Table, event: Event, error: sa_exc.IntegrityError
) -> Claim:
    if not means_duplicate(connection, table, event.id):
        raise error

    return Claim.DUPLICATE
