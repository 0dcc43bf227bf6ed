"""A claim in one round trip, over the libpq below a connection of psycopg.

psycopg itself takes one for BEGIN, and one for each statement.
"""

from __future__ import annotations

import collections.abc as c
import functools
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
    parameters: c.Mapping[str, str],
    timeout: float,
) -> Found | None:
    """Begin a transaction and insert an id, or else look for it and roll back.

    ``lock_timeout`` has to be for the handlers what it was. We assume that it is what it was the
    last time, set it back to that, and are told what it really was.

    :param insert: of one row, or none.
    :param select: finds the row that is there in its place.
    :param timeout: in seconds, for each lock that the insert waits for.
    :return: None if this is not the way to do it here. Then nothing was done.
    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    texts = plain_texts(connection, insert, select)
    driver = connection.connection.driver_connection

    if texts is None or not _can_begin(driver):
        return None

    insert_text, select_text = texts

    def send(*statements: str) -> list[pq.abc.PGresult]:
        execute = functools.partial(_execute, driver, ";".join(statements), parameters)
        return call_driver(connection, insert_text.sql, execute)

    assumed = connection.info.get(_LOCK_TIMEOUT, "0")
    _, shown, _, inserted, _ = send(
        "BEGIN",
        "SHOW lock_timeout",
        f"SET LOCAL lock_timeout = '{milliseconds(timeout)}'",
        insert_text.sql,
        f"SET LOCAL lock_timeout = '{assumed}'",
    )
    connection.info[_LOCK_TIMEOUT] = actual = _value(shown)

    if inserted.command_tuples == 0:
        found, _ = send(select_text.sql, "ROLLBACK")
        return Found(is_inserted=False, event_id=_value(found))

    if actual != assumed:
        send(f"SET LOCAL lock_timeout = '{actual}'")

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
    driver: Connection[t.Any], sql: str, parameters: c.Mapping[str, str]
) -> list[pq.abc.PGresult]:
    """Execute statements until one fails.

    :param sql: with parameters as ``%(name)s``.
    :return: their results.
    :raises psycopg.Error: what the server says.
    """
    encoding = driver.info.encoding
    quote = pq.Escaping(driver.pgconn).escape_literal
    values = {
        name: bytes(quote(value.encode(encoding))).decode(encoding)
        for name, value in parameters.items()
    }

    with driver.lock:
        driver.pgconn.send_query((sql % values).encode(encoding))
        results: list[pq.abc.PGresult] = driver.wait(generators.execute(driver.pgconn))

    for result in results:
        if result.status not in _DONE:
            raise errors.error_from_result(result, encoding)

    return results


def _value(result: pq.abc.PGresult) -> str | None:
    """Of the first column in the first row."""
    value = result.get_value(0, 0) if result.ntuples else None
    return None if value is None else bytes(value).decode("ascii", "replace")
