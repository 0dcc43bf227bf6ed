"""The tables that handlers write to. Nothing in them keeps a run from being written twice."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

import sqlalchemy as sa

metadata = sa.MetaData()

JUNK = "junk"
"""The run that is written, and rolled back by the handler."""


def _table(name: str) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.String(50), nullable=False),
        sa.Column("run", sa.String(32), nullable=False),
    )


ledger = _table("faults_ledger")
"""The first write of each run."""

effect = _table("faults_effect")
"""The second."""


@dataclasses.dataclass
class Books:
    """What the database holds in the end.

    :param recorded: the ids that the guard has recorded, or ``None`` if it records them elsewhere.
    """

    ledger: dict[str, list[str]]
    effect: dict[str, list[str]]
    recorded: set[str] | None = None


def read_books(url: str, table: str | None = None) -> Books:
    """Read them in a new connection.

    :param table: of the guard's records.
    """
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    with engine.connect() as connection:
        recorded = None

        if table is not None:
            found = connection.execute(sa.text(f"SELECT event_id FROM {table}"))
            recorded = set(found.scalars())

        return Books(_read(connection, ledger), _read(connection, effect), recorded)


def _read(connection: sa.Connection, table: sa.Table) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = collections.defaultdict(list)

    for event_id, run in connection.execute(
        sa.select(table.c.event_id, table.c.run).order_by(table.c.id)
    ):
        runs[t.cast(str, event_id)].append(run)

    return dict(runs)
