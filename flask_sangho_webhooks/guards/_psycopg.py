"""A claim in one round trip, over the libpq below a connection of psycopg.

psycopg itself takes one for BEGIN, and one for each statement.
"""

from __future__ import annotations

import collections.abc as c
import functools
import hashlib
import re
import typing as t
import weakref

import sqlalchemy as sa
from psycopg import Connection, Cursor, errors, generators, pq

from ._driver import call_driver, Found, plain_texts
from ._timeouts import milliseconds

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_LOCK_TIMEOUT = "sangho_lock_timeout"
"""In a connection's ``info``: what its ``lock_timeout`` was at the last claim."""
_INSERTS = "sangho_inserts"
"""In a connection's ``info``: a :class:`_PreparedInsert` for each text."""

_without_prepared: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
"""Engines on which a prepared insert was not what we took it for."""
_MISTAKEN = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


class _PreparedInsert:
    """An insert of one connection, which becomes a prepared statement when it has been executed as
    often as psycopg waits for with its own: parsing and planning take half of a claim's time.

    psycopg drops all prepared statements, ours with its own, after a rollback and in some other
    cases. So we note one of its own that is there: for as long as it is, so is ours.

    :param text: with parameters as ``%(name)s``.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._times = 0
        self._prepared: str | None = None
        self._witness: tuple[object, object] = (None, None)

    def sql(self, driver: Connection[t.Any], parameters: c.Iterable[str]) -> str:
        """What to execute now: one statement, or two of which the last inserts."""
        # Private, and the same from psycopg 3.1 on. Where it is not, nothing is prepared.
        names = getattr(getattr(driver, "_prepared", None), "_names", None) or {}
        key, name = self._witness

        if self._prepared is not None:
            if names.get(key) == name:
                return self._prepared

            self._times, self._prepared = 0, None

        if driver.prepare_threshold is None or self._times < driver.prepare_threshold or not names:
            self._times += 1
            return self._text

        # Behind a pooler, another client may have been on the connection. Its statement of the same
        # name is the same.
        digest = hashlib.blake2b(self._text.encode(), digest_size=8).hexdigest()
        numbers = {parameter: f"${number}" for number, parameter in enumerate(parameters, 1)}
        numbered = (self._text % numbers).replace("%", "%%")
        values = ", ".join(f"%({parameter})s" for parameter in parameters)
        self._prepared = f"EXECUTE sangho_{digest} ({values})"
        self._witness = next(reversed(names.items()))
        return f"PREPARE sangho_{digest} AS {numbered};{self._prepared}"


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
    sql = _insert_sql(connection, driver, insert_text.sql, parameters)
    claim = functools.partial(
        send,
        f"BEGIN;SHOW lock_timeout;SET LOCAL lock_timeout = '{milliseconds(timeout)}'"
        f";{sql};SET LOCAL lock_timeout = '{assumed}'",
    )

    try:
        _, shown, _, *_, inserted, _ = call_driver(connection, insert_text.sql, claim)
    except Exception as error:
        if sql.startswith("PREPARE"):
            del info[_INSERTS][insert_text.sql]

        if sql == insert_text.sql or not isinstance(getattr(error, "orig", None), _MISTAKEN):
            raise

        # A text of SQL has dropped it, or a pooler has put another connection in its place.
        _without_prepared.add(connection.engine)
        call_driver(connection, "ROLLBACK", functools.partial(send, "ROLLBACK"))
        return insert_or_find(connection, insert, select, parameters, timeout)

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


def _insert_sql(
    connection: sa.Connection,
    driver: Connection[t.Any],
    text: str,
    parameters: c.Iterable[str],
) -> str:
    if connection.engine in _without_prepared:
        return text

    inserts: dict[str, _PreparedInsert] = connection.info.setdefault(_INSERTS, {})
    insert = inserts.get(text)

    if insert is None:
        insert = inserts[text] = _PreparedInsert(text)

    return insert.sql(driver, parameters)


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
