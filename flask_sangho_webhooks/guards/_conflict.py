"""What it means that an event's id could not be inserted."""

from __future__ import annotations

import functools
import typing as t
import weakref

import sqlalchemy as sa

from ..errors import ConfigError
from ..models import MYSQL

_exact: weakref.WeakKeyDictionary[sa.Engine, set[sa.Table]] = weakref.WeakKeyDictionary()
"""Tables in which an event conflicts with nothing but a record of the same event."""


def is_recorded(connection: sa.Connection, table: sa.Table, event_id: str) -> bool:
    """Whether the id is in the table, as seen by this connection."""
    found = connection.execute(select_id(table), {"event_id": event_id}).scalar()
    return found == event_id


def means_duplicate(connection: sa.Connection, table: sa.Table, event_id: str) -> bool:
    """Tell a duplicate from a conflict that has nothing to do with the id, after one of them.

    The table itself is asked once. If it leaves no doubt, the next conflicts need no query.

    :raises ConfigError: if the id conflicts with one that differs from it in case.
    """
    exact = _exact.setdefault(connection.engine, set())

    if table in exact:
        return True

    # With a shared lock, because a snapshot older than the other row would not show it.
    statement = select_id(table).with_for_update(read=True)
    found = connection.execute(statement, {"event_id": event_id}).scalar()

    if found is None:
        return False

    if found != event_id:
        raise ConfigError(
            f"The column 'event_id' of {table.fullname!r} takes two ids that differ in case only"
            " for one. Run 'flask sangho upgrade' to give it a binary collation."
        )

    if _is_exact(connection, table):
        exact.add(table)

    return True


@functools.cache
def select_id(table: sa.Table) -> sa.Select[t.Any]:
    """The id of a record, to be looked for by itself."""
    return sa.select(table.c.event_id).where(table.c.event_id == sa.bindparam("event_id"))


def _is_exact(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the key of a MySQL or MariaDB table is its one constraint, and tells case apart."""
    if connection.dialect.name not in MYSQL:
        return False

    inspector = sa.inspect(connection)
    indexes = inspector.get_indexes(table.name, schema=table.schema)
    columns = inspector.get_columns(table.name, schema=table.schema)
    column = next(column for column in columns if column["name"] == "event_id")
    collation = getattr(column["type"], "collation", None) or ""
    return collation.endswith("_bin") and not any(index["unique"] for index in indexes)
