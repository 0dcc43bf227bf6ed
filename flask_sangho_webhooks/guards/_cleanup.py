"""Deleting old records a batch at a time, beside running deliveries."""

from __future__ import annotations

import datetime as dt
import typing as t

import sqlalchemy as sa


class Batches:
    """The expired records of a table, deleted from the oldest on.

    Each batch belongs in a transaction of its own. Rows are deleted by key, so that no lock is
    taken on the ranges in which deliveries insert. Two cleanups at once share the work or repeat
    each other's; neither deletes a record that is not expired.

    :param cutoff: records of before this time are expired, as ``processed_at`` holds it.
    :param size: records in a batch.
    """

    def __init__(self, table: sa.Table, cutoff: dt.datetime, size: int) -> None:
        self.table = table
        self.cutoff = cutoff
        self.size = size
        self.finished = False
        # Where the last batch ended: deleted entries stay in the index until the server has purged
        # them, and a scan from the beginning would walk over all of them again.
        self._reached: dt.datetime | None = None

    def count(self, connection: sa.Connection) -> int:
        """How many records are expired."""
        count = sa.select(sa.func.count()).select_from(self.table).where(self._expired())
        return connection.execute(count).scalar_one()

    def delete_next(self, connection: sa.Connection) -> int:
        """Delete one batch.

        :return: how many records this connection deleted. ``finished`` says whether it was the
            last batch: another cleanup may have deleted all of this one.
        """
        delete = {"postgresql": self._postgresql, "sqlite": self._sqlite}
        found, deleted = delete.get(connection.dialect.name, self._generic)(connection)
        self.finished = found < self.size
        return deleted

    def _expired(self) -> sa.ColumnElement[bool]:
        processed_at = self.table.c.processed_at

        if self._reached is None:
            return processed_at < self.cutoff

        return sa.and_(processed_at < self.cutoff, processed_at >= self._reached)

    def _oldest(self, *columns: sa.ColumnElement[t.Any]) -> sa.Select[t.Any]:
        return (
            sa.select(*columns)
            .where(self._expired())
            .order_by(self.table.c.processed_at)
            .limit(self.size)
        )

    def _postgresql(self, connection: sa.Connection) -> tuple[int, int]:
        event_id = self.table.c.event_id
        oldest = self._oldest(event_id).with_for_update(skip_locked=True)
        # An array, not IN: it keeps the plan on the primary key whatever the statistics say.
        doomed = sa.func.array(oldest.scalar_subquery(), type_=sa.ARRAY(event_id.type))
        statement = (
            sa.delete(self.table)
            .where(event_id == sa.any_(doomed))
            .returning(self.table.c.processed_at)
        )
        times = connection.execute(statement).scalars().all()
        self._reached = max(times, default=self._reached)
        return len(times), len(times)

    def _sqlite(self, connection: sa.Connection) -> tuple[int, int]:
        event_id = self.table.c.event_id
        statement = sa.delete(self.table).where(event_id.in_(self._oldest(event_id)))
        statement = statement.execution_options(preserve_rowcount=True)
        deleted = connection.execute(statement).rowcount
        return deleted, deleted

    def _generic(self, connection: sa.Connection) -> tuple[int, int]:
        event_id, processed_at = self.table.c.event_id, self.table.c.processed_at
        rows = connection.execute(self._oldest(event_id, processed_at)).all()

        if not rows:
            return 0, 0

        self._reached = rows[-1].processed_at
        statement = sa.delete(self.table).where(
            event_id.in_([row.event_id for row in rows]), processed_at < self.cutoff
        )
        statement = statement.execution_options(preserve_rowcount=True)
        return len(rows), connection.execute(statement).rowcount
