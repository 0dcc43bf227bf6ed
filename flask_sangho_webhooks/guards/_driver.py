"""The first statement of a delivery's transaction, executed over the driver's own cursor.

SQLAlchemy takes about as long to execute a statement as a database nearby does. Nothing else is
left out: the statement is compiled by SQLAlchemy, once, and whoever watches what the engine
executes (a log, a tracer, recorded queries) sees it as ever, because then SQLAlchemy executes it.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import functools
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from sqlalchemy.sql.compiler import SQLCompiler

from ._transient import is_lock_timeout


class Reply(t.NamedTuple):
    """What a database answers to a statement."""

    rowcount: int
    row: c.Sequence[t.Any] | None
    """The first of the rows that the statement returns."""


def execute_first(
    connection: sa.Connection, statement: sa.Executable, parameters: c.Mapping[str, t.Any]
) -> Reply:
    """Execute a statement at the beginning of a transaction, where nothing is lost if that is
    rolled back and begun anew.

    :param statement: all of its parameters are named, and are in ``parameters``.
    :raises sqlalchemy.exc.DBAPIError: what the database says. After a lock timeout or an integrity
        error the transaction is as the database leaves it.
    """
    if _is_watched(connection):
        return _execute(connection, statement, parameters)

    sql, names = _compile(statement, connection.dialect)
    values = parameters if names is None else [parameters[name] for name in names]
    driver = connection.dialect.loaded_dbapi

    try:
        cursor = connection.connection.cursor()
    except driver.Error:
        return _execute(connection, statement, parameters)

    try:
        cursor.execute(sql, values)
        return Reply(cursor.rowcount, cursor.fetchone() if cursor.description else None)
    except driver.Error as caught:
        error = sa_exc.DBAPIError.instance(
            sql, None, caught, driver.Error, hide_parameters=True, dialect=connection.dialect
        )
        assert isinstance(error, sa_exc.DBAPIError)

        if isinstance(error, sa_exc.IntegrityError) or is_lock_timeout(error):
            raise error from caught
    finally:
        with contextlib.suppress(driver.Error):
            cursor.close()

    # SQLAlchemy tells those who listen for errors, and drops connections that are lost.
    with contextlib.suppress(driver.Error):
        connection.dialect.do_rollback(connection.connection)

    return _execute(connection, statement, parameters)


def _execute(
    connection: sa.Connection, statement: sa.Executable, parameters: c.Mapping[str, t.Any]
) -> Reply:
    result = connection.execute(statement, parameters)
    return Reply(result.rowcount, result.first() if result.returns_rows else None)


def _is_watched(connection: sa.Connection) -> bool:
    engine = connection.engine
    events = engine.dispatch
    return bool(
        events.before_cursor_execute
        or events.after_cursor_execute
        or events.before_execute
        or events.after_execute
        or engine.echo
        # They can change the statement, such as schema_translate_map.
        or connection.get_execution_options()
        # In a transaction of somebody else's: he may watch, and more would be rolled back.
        or connection.in_nested_transaction()
    )


@functools.lru_cache(maxsize=64)
def _compile(
    statement: sa.ClauseElement, dialect: sa.Dialect
) -> tuple[str, c.Sequence[str] | None]:
    """The text of a statement, and the names of its parameters where they have an order."""
    compiled = t.cast(SQLCompiler, statement.compile(dialect=dialect))
    return str(compiled), compiled.positiontup if compiled.positional else None
