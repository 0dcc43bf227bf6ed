"""The first statement of a delivery's transaction, executed over the driver's own cursor.

SQLAlchemy takes about as long to execute a statement as a database nearby does. It still compiles
this one, once, and whoever watches what the engine executes (a log, a tracer, recorded queries)
misses nothing: then SQLAlchemy executes it.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import functools
import logging
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from sqlalchemy.sql.compiler import SQLCompiler

from ._join import note_error

_Statement = sa.Insert | sa.Select[t.Any]


class Reply(t.NamedTuple):
    """What a database answers to a statement."""

    rowcount: int
    row: c.Sequence[t.Any] | None
    """The first of the rows that a SELECT finds."""


class _Text(t.NamedTuple):
    sql: str
    names: c.Sequence[str] | None
    """Of the parameters, where the driver takes them in an order."""
    is_select: bool


def execute_first(
    connection: sa.Connection, statement: _Statement, parameters: c.Mapping[str, str]
) -> Reply:
    """Execute the first statement of a transaction, or the second.

    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    text = None if _is_watched(connection) else _compile(statement, connection.dialect)

    if text is None:
        return _execute(connection, statement, parameters)

    values = parameters if text.names is None else [parameters[name] for name in text.names]
    driver = connection.dialect.loaded_dbapi
    cursor: t.Any = None

    try:
        cursor = connection.connection.cursor()
        cursor.execute(text.sql, values)
        return Reply(cursor.rowcount, cursor.fetchone() if text.is_select else None)
    except driver.Error as error:
        # If the connection is lost, SQLAlchemy notices when it rolls back.
        raise sa_exc.DBAPIError.instance(
            text.sql, None, error, driver.Error, hide_parameters=True, dialect=connection.dialect
        ) from error
    except BaseException as interruption:
        # As SQLAlchemy does. The reply may yet come, and would be taken for that to the next
        # statement on the connection. SQLite sends none.
        if not isinstance(interruption, Exception) and connection.dialect.name != "sqlite":
            connection.invalidate()

        raise
    finally:
        if cursor is not None:
            with contextlib.suppress(driver.Error):
                cursor.close()


def _execute(
    connection: sa.Connection, statement: _Statement, parameters: c.Mapping[str, str]
) -> Reply:
    result = connection.execute(statement, parameters)
    reply = Reply(result.rowcount, result.first() if statement.is_select else None)
    result.close()
    return reply


def _is_watched(connection: sa.Connection) -> bool:
    engine = connection.engine
    events = engine.dispatch
    of_dialect = connection.dialect.dispatch
    return bool(
        events.before_cursor_execute
        or events.after_cursor_execute
        or events.before_execute
        or events.after_execute
        or set(of_dialect.handle_error) - {note_error}
        # They may listen on the connection itself, whose own events take long to ask for.
        or events.engine_connect
        or of_dialect.do_execute
        or engine.logger.isEnabledFor(logging.INFO)
        # They can change the statement, as schema_translate_map does.
        or connection.get_execution_options()
        # There is a transaction around ours, whose owner may watch.
        or connection.in_nested_transaction()
    )


@functools.lru_cache(maxsize=64)
def _compile(statement: _Statement, dialect: sa.Dialect) -> _Text | None:
    """The text of a statement, if nothing but its named parameters has to be filled in, as they
    are.
    """
    compiled: SQLCompiler = statement.compile(dialect=dialect)

    # A model of the user's own may have defaults that Python makes, and types of its own.
    for parameter in compiled.binds.values():
        kind = parameter.type.dialect_impl(dialect)

        if (
            not parameter.required
            or kind.bind_processor(dialect)
            or kind.result_processor(dialect, None)
        ):
            return None

    names = compiled.positiontup if compiled.positional else None
    return _Text(str(compiled), names, statement.is_select)
