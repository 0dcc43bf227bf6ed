"""The first statements of a delivery's transaction, executed over the driver's own cursor.

SQLAlchemy takes about as long to execute a statement as a database nearby does. It still compiles
these, once, and whoever watches what the engine executes (a log, a tracer, recorded queries) misses
nothing: then SQLAlchemy executes them.
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
_R = t.TypeVar("_R")


class Reply(t.NamedTuple):
    """What a database answers to a statement."""

    rowcount: int
    row: c.Sequence[t.Any] | None
    """The first of the rows that a SELECT finds."""


class Found(t.NamedTuple):
    """What an attempt to insert an id has come to."""

    is_inserted: bool
    event_id: str | None = None
    """What is there in its place."""


class Text(t.NamedTuple):
    """A statement as the driver takes it."""

    sql: str
    names: c.Sequence[str] | None
    """Of the parameters, where the driver takes them in an order."""
    is_select: bool


def execute_first(
    connection: sa.Connection, statement: _Statement, parameters: c.Mapping[str, object]
) -> Reply:
    """Execute one of the first statements of a transaction.

    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    texts = plain_texts(connection, statement)

    if texts is None:
        return _execute(connection, statement, parameters)

    (text,) = texts
    execute = functools.partial(_over_cursor, connection, text, parameters)
    return call_driver(connection, text.sql, execute)


@contextlib.contextmanager
def unprepared(connection: sa.Connection) -> c.Iterator[None]:
    """psycopg prepares what is executed often, and a prepared statement stays with the table that
    it was planned for when one of the same name comes to be earlier in the ``search_path``.
    """
    driver: t.Any = connection.connection.dbapi_connection
    threshold = getattr(driver, "prepare_threshold", None)

    if threshold is None:  # another driver, or it is not to prepare anything
        yield
        return

    driver.prepare_threshold = None

    try:
        yield
    finally:
        driver.prepare_threshold = threshold


def call_driver(connection: sa.Connection, sql: str, function: c.Callable[[], _R]) -> _R:
    """Call a function that executes something over the driver.

    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    driver = connection.dialect.loaded_dbapi

    try:
        return function()
    except driver.Error as error:
        # If the connection is lost, SQLAlchemy notices when it rolls back.
        raise sa_exc.DBAPIError.instance(
            sql, None, error, driver.Error, hide_parameters=True, dialect=connection.dialect
        ) from error
    except BaseException as interruption:
        # As SQLAlchemy does. The reply may yet come, and would be taken for that to the next
        # statement on the connection. SQLite sends none.
        if not isinstance(interruption, Exception) and connection.dialect.name != "sqlite":
            connection.invalidate()

        raise


def _over_cursor(
    connection: sa.Connection, text: Text, parameters: c.Mapping[str, object]
) -> Reply:
    values = parameters if text.names is None else [parameters[name] for name in text.names]
    driver = connection.dialect.loaded_dbapi
    cursor: t.Any = connection.connection.cursor()

    # Not closed after an interruption: that waits for the rest of the reply.
    try:
        cursor.execute(text.sql, values)
        reply = Reply(cursor.rowcount, cursor.fetchone() if text.is_select else None)
    except driver.Error:
        with contextlib.suppress(driver.Error):
            cursor.close()

        raise

    cursor.close()
    return reply


def _execute(
    connection: sa.Connection, statement: _Statement, parameters: c.Mapping[str, object]
) -> Reply:
    result = connection.execute(statement, parameters)
    reply = Reply(result.rowcount, result.first() if statement.is_select else None)
    result.close()
    return reply


def plain_texts(connection: sa.Connection, *statements: _Statement) -> list[Text] | None:
    """The texts of statements, unless it takes SQLAlchemy to execute one of them."""
    if _is_watched(connection):
        return None

    texts = [_compile(statement, connection.dialect) for statement in statements]
    return None if None in texts else t.cast(list[Text], texts)


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
def _compile(statement: _Statement, dialect: sa.Dialect) -> Text | None:
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
    return Text(str(compiled), names, statement.is_select)
