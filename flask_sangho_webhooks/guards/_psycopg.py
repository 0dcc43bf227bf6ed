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
import sqlalchemy.exc as sa_exc
from psycopg import Connection, Cursor, errors, generators, pq

from ._driver import call_driver, Found, plain_texts
from ._timeouts import milliseconds

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_LOCK_TIMEOUT = "sangho_lock_timeout"
"""In a connection's ``info``: what its ``lock_timeout`` was at the last claim."""
_INSERTS = "sangho_inserts"
"""In a connection's ``info``: an :class:`_Insert` for each text."""
_IS_DIRECT = "sangho_is_direct"
"""In a connection's ``info``: whether it is to the server itself."""

_without_prepared: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
"""Engines that do without prepared inserts."""
_MISTAKEN = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


def insert_or_find(
    connection: sa.Connection,
    insert: sa.Insert,
    prepared: sa.Insert,
    select: sa.Select[t.Any],
    parameters: c.Mapping[str, object],
    timeout: float,
) -> Found | None:
    """Begin a transaction and insert an id, or else look for it and roll back.

    :param insert: of one row, or none.
    :param prepared: the same as a prepared statement. It may also insert none where the name of the
        table has come to stand for another one.
    :param select: finds the row that is there in its place.
    :param parameters: of all three.
    :param timeout: in seconds, for each lock that the insert waits for.
    :return: None if this is not the way to do it here. Then nothing was done.
    :raises sqlalchemy.exc.DBAPIError: what the database says.
    """
    texts = plain_texts(connection, insert, prepared, select)
    driver = connection.connection.dbapi_connection

    if texts is None or not _can_begin(driver):
        return None

    text, prepared_text, select_text = (text.sql for text in texts)
    send = functools.partial(_execute, driver, parameters)
    attempt = functools.partial(_attempt, connection, send, select_text, timeout)

    if connection.engine in _without_prepared:
        return attempt(text)

    inserts: dict[str, _Insert] = connection.info.setdefault(_INSERTS, {})
    state = inserts.get(text) or inserts.setdefault(text, _Insert(text, prepared_text, parameters))
    sql = state.sql(driver)

    if sql.startswith("PREPARE") and not _is_direct(connection, driver):
        _without_prepared.add(connection.engine)
        return attempt(text)

    try:
        found = attempt(sql)
    except sa_exc.DBAPIError as error:
        if sql == text or not isinstance(error.orig, _MISTAKEN):
            raise

        # Somebody has dropped it, or made it, without psycopg's knowledge.
        _without_prepared.add(connection.engine)
        call_driver(connection, "ROLLBACK", functools.partial(send, "ROLLBACK"))
        return attempt(text)

    state.note(driver, sql)
    is_unsure = sql != text and not found.is_inserted and found.event_id is None
    return attempt(text) if is_unsure else found


def _attempt(
    connection: sa.Connection,
    send: c.Callable[[str], list[pq.abc.PGresult]],
    select: str,
    timeout: float,
    insert: str,
) -> Found:
    """Insert, or else look and roll back.

    ``lock_timeout`` has to be for the handlers what it was. We assume that it is what it was the
    last time, set it back to that, and are told what it really was. To cancel from here what waits
    too long would be quicker, but a cancellation needs a connection of its own: where it does not
    arrive, as behind a pooler, the server goes on waiting.

    :param insert: one statement, or several of which the last inserts.
    """
    info = connection.info
    assumed = info.get(_LOCK_TIMEOUT, "0")
    claim = functools.partial(
        send,
        f"BEGIN;SHOW lock_timeout;SET LOCAL lock_timeout = '{milliseconds(timeout)}'"
        f";{insert};SET LOCAL lock_timeout = '{assumed}'",
    )
    _, shown, _, *_, inserted, _ = call_driver(connection, insert, claim)
    actual = _value(shown)

    if not inserted.command_tuples:
        look = functools.partial(send, f"{select};ROLLBACK")
        found, _ = call_driver(connection, select, look)
        return Found(is_inserted=False, event_id=_value(found))

    if actual != assumed:
        info[_LOCK_TIMEOUT] = actual
        correct = functools.partial(send, f"SET LOCAL lock_timeout = '{actual}'")
        call_driver(connection, insert, correct)

    return Found(is_inserted=True)


class _Insert:
    """How one connection executes an insert: as a text, and when it has done so as often as psycopg
    waits for with its own statements, as a prepared one. Parsing and planning take half of a
    claim's time.

    psycopg drops all prepared statements, ours with its own, after a rollback and in some other
    cases. So we note one of its own that is there: for as long as it is, so is ours.

    :param text: with parameters as ``%(name)s``, as in ``prepared``.
    """

    def __init__(self, text: str, prepared: str, parameters: c.Iterable[str]) -> None:
        # Of the text: where another client has made the statement of this name, it is the same.
        name = "sangho_" + hashlib.blake2b(prepared.encode(), digest_size=8).hexdigest()
        numbers = {parameter: f"${number}" for number, parameter in enumerate(parameters, 1)}
        numbered = (prepared % numbers).replace("%", "%%")
        values = ", ".join(f"%({parameter})s" for parameter in numbers)
        self._text = text
        self._execute = f"EXECUTE {name} ({values})"
        self._prepare = f"PREPARE {name} AS {numbered};{self._execute}"
        self._times = 0
        self._is_crowded_out = False
        self._witness: tuple[object, object] | None = None

    def sql(self, driver: Connection[t.Any]) -> str:
        """What to execute now: one statement, or two of which the last inserts."""
        names = _prepared_by_psycopg(driver)

        if self._witness is not None:
            key, name = self._witness

            if names.get(key) == name:
                return self._execute

            self._times, self._witness = 0, None
            # Dropped alone, for want of room: ours is still there, and cannot be made again.
            most = driver.prepared_max
            self._is_crowded_out = most is not None and len(names) >= most

        threshold = driver.prepare_threshold
        is_due = threshold is not None and self._times >= threshold and not self._is_crowded_out
        return self._prepare if is_due and names else self._text

    def note(self, driver: Connection[t.Any], sql: str) -> None:
        """Note that something has been executed."""
        self._times += 1

        if sql != self._text:
            # The newest: psycopg drops the oldest when there are too many.
            self._witness = next(reversed(_prepared_by_psycopg(driver).items()))


def _prepared_by_psycopg(driver: Connection[t.Any]) -> dict[object, object]:
    # Private, and the same from psycopg 3.1 on. Where it is not, nothing is prepared.
    return getattr(getattr(driver, "_prepared", None), "_names", None) or {}


def _is_direct(connection: sa.Connection, driver: Connection[t.Any]) -> bool:
    """Whether no pooler is in between, which may give each transaction another connection."""
    info = connection.info

    if _IS_DIRECT not in info:
        ask = functools.partial(_execute, driver, {}, "SELECT pg_backend_pid()")
        (shown,) = call_driver(connection, "SELECT pg_backend_pid()", ask)
        info[_IS_DIRECT] = _value(shown) == str(driver.pgconn.backend_pid)

    return bool(info[_IS_DIRECT])


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
