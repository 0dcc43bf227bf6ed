"""A claim in one round trip, over the libpq below a connection of psycopg.

psycopg itself takes one for BEGIN, and one for each statement.
"""

from __future__ import annotations

import collections.abc as c
import functools
import re
import typing as t

import sqlalchemy as sa
from psycopg import Connection, Cursor, errors, generators, pq

from ._driver import call_driver, Found, plain_texts
from ._timeouts import milliseconds

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_LOCK_TIMEOUT = "sangho_lock_timeout"
"""In a connection's ``info``: what its ``lock_timeout`` was at the last claim."""


def insert_or_find(
    connection: sa.Connection,
    insert: sa.Insert,
    select: sa.Select[t.Any],
    parameters: c.Mapping[str, object],
    timeout: float,
) -> Found | None:
    """Begin a transaction and insert an id, or else look for it and roll back.

    ``lock_timeout`` has to be for the handlers what it was. We assume that it is what it was the
    last time, set it back to that, and are told what it really was. To cancel from here what waits
    too long would be quicker, but a cancellation needs a connection of its own: where it does not
    arrive, as behind a pooler, the server goes on waiting.

    :param insert: of one row, or none.
    :param select: finds the row that is there in its place.
    :param timeout: in seconds, for each lock that the insert waits for.
    :return: None if this is not the way to do it here. Then nothing was done.
    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    texts = plain_texts(connection, insert, select)
    driver = connection.connection.dbapi_connection

    if texts is None or not _can_begin(driver):
        return None

    insert_text, select_text = texts
    send = functools.partial(_execute, driver, parameters)
    info = connection.info
    assumed = info.get(_LOCK_TIMEOUT, "0")
    claim = functools.partial(
        send,
        f"BEGIN;SHOW lock_timeout;SET LOCAL lock_timeout = '{milliseconds(timeout)}'"
        f";{insert_text.sql};SET LOCAL lock_timeout = '{assumed}'",
    )
    _, shown, _, inserted, _ = call_driver(connection, insert_text.sql, claim)
    actual = _value(shown)

    if not inserted.command_tuples:
        look = functools.partial(send, f"{select_text.sql};ROLLBACK")
        found, _ = call_driver(connection, select_text.sql, look)
        return Found(is_inserted=False, event_id=_value(found))

    if actual != assumed:
        info[_LOCK_TIMEOUT] = actual
        correct = functools.partial(send, f"SET LOCAL lock_timeout = '{actual}'")
        call_driver(connection, insert_text.sql, correct)

    return Found(is_inserted=True)


def _can_begin(driver: object) -> t.TypeGuard[Connection[t.Any]]:
    """Whether psycopg itself would begin a transaction now, and with a plain BEGIN."""
    return (
        # Not those of a tracer, which would miss the claim.
        type(driver) is Connection
        and driver.cursor_factory is Cursor
        and driver.pgconn.transaction_status == pq.TransactionStatus.IDLE
        and driver.pgconn.pipeline_status == pq.PipelineStatus.OFF
        and not driver.autocommit
        and driver.isolation_level is None
        and driver.read_only is None
        and driver.deferrable is None
    )


def _execute(
    driver: Connection[t.Any], parameters: c.Mapping[str, object], sql: str
) -> list[pq.abc.PGresult]:
    """Execute statements until one fails.

    :param sql: with parameters as ``%(name)s``.
    :return: their results.
    :raises psycopg.Error: what the server says.
    """
    literals = {}

    for name, value in parameters.items():
        # The str() of a string may be another, as that of an enumeration's member.
        text = value if isinstance(value, str) else str(value)
        literals[name] = "'" + text + "'" if _needs_no_escape(text) else _escaped(driver, text)

    filled = sql % literals
    query = filled.encode("ascii" if filled.isascii() else driver.info.encoding)

    with driver.lock:
        driver.pgconn.send_query(query)
        results: list[pq.abc.PGresult] = driver.wait(generators.execute(driver.pgconn))

    for result in results:
        if result.status not in _DONE:
            raise errors.error_from_result(result, driver.info.encoding)

    return results


_needs_no_escape = re.compile("[A-Za-z0-9_.-]*").fullmatch


def _escaped(driver: Connection[t.Any], text: str) -> str:
    encoding = driver.info.encoding
    quoted = pq.Escaping(driver.pgconn).escape_literal(text.encode(encoding))
    return bytes(quoted).decode(encoding)


def _value(result: pq.abc.PGresult) -> str | None:
    """Of the first column in the first row."""
    value = result.get_value(0, 0) if result.ntuples else None
    return None if value is None else bytes(value).decode("ascii", "replace")
