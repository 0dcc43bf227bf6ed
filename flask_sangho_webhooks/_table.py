"""In what a table of processed events differs from the one that the guard needs."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from .event import MAX_ID_LENGTH, MAX_TYPE_LENGTH
from .findings import Level
from .models import COLUMNS, MYSQL

_LENGTHS = {"event_id": MAX_ID_LENGTH, "event_type": MAX_TYPE_LENGTH}


@dataclasses.dataclass(frozen=True)
class Defect:
    """One difference. The codes are those of ``flask sangho check``."""

    code: str
    message: str
    fix: str | None = None
    """What a person must do before ``flask sangho upgrade``; None if that does it."""

    lacks: str = ""
    """What the upgrade adds."""

    level: Level = "error"


def find_defects(
    connection: sa.Connection, name: str, index: str, schema: str | None = None
) -> list[Defect]:
    """Compare a table that exists with what the guard needs. Reads only.

    :param index: the name for an index on ``processed_at``, if there is none.
    """
    inspector = sa.inspect(connection)
    columns = {column["name"]: column for column in inspector.get_columns(name, schema=schema)}
    missing = list(_missing_columns(name, columns))

    # What else there is to say makes sense of a table with these columns only.
    if missing:
        return missing

    if not _is_key(connection, name, columns["event_id"], schema):
        return [_no_key(name)]

    found = list(_missing_index(inspector, name, index, schema))

    if connection.dialect.name != "sqlite":  # where a length means nothing
        found += _short_columns(name, columns)

    if connection.dialect.name in MYSQL:
        found += _mysql(connection, name, schema)
    elif connection.dialect.name == "sqlite" and columns["event_id"]["nullable"]:
        found += _nullable_key(connection, name, schema)

    return found


def find_demands(connection: sa.Connection, table: sa.Table) -> list[Defect]:
    """Columns that an insert must fill in, and the guard does not know."""
    inspector = sa.inspect(connection)
    key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    # Which SQLite fills in, if it is one INTEGER.
    rowid = key if connection.dialect.name == "sqlite" and len(key) == 1 else []
    return [
        Defect(
            "table-demands-column",
            f"The column {column['name']!r} of {table.fullname!r} is NOT NULL and has no default,"
            " so no event can be recorded.",
            f"Give the column {column['name']!r} a default, or let it be NULL.",
        )
        for column in inspector.get_columns(table.name, schema=table.schema)
        if column["name"] not in COLUMNS
        and not (column["name"] in rowid and isinstance(column["type"], sa.INTEGER))
        and _demands(column, table)
    ]


def _demands(column: t.Any, table: sa.Table) -> bool:
    if column["nullable"] or column["default"] is not None or column.get("computed"):
        return False

    if column.get("identity") or column.get("autoincrement") is True:
        return False

    known = table.c.get(column["name"])
    return known is None or known.default is None


def _missing_columns(name: str, columns: c.Container[str]) -> c.Iterator[Defect]:
    for column in COLUMNS:
        if column not in columns:
            yield Defect(
                "table-column",
                f"The table {name!r} exists without the column {column!r}.",
                "Add the column as Sangho's guide defines it, or rename the table, and upgrade"
                " again.",
            )


def _is_key(connection: sa.Connection, name: str, event_id: t.Any, schema: str | None) -> bool:
    """Whether an insert of a second record of an event conflicts with the first."""
    inspector = sa.inspect(connection)

    if inspector.get_pk_constraint(name, schema=schema)["constrained_columns"] == ["event_id"]:
        return True

    if event_id["nullable"]:
        return False

    if connection.dialect.name == "sqlite":
        return _is_key_on_sqlite(connection, name, schema)

    return any(
        index["unique"] and index["column_names"] == ["event_id"] and _is_whole(index)
        for index in inspector.get_indexes(name, schema=schema)
    )


def _is_key_on_sqlite(connection: sa.Connection, name: str, schema: str | None) -> bool:
    """Ask for the plan of an insert: SQLAlchemy does not see each UNIQUE of a column."""
    table = sa.Table(name, sa.MetaData(), schema=schema)
    quoted = connection.dialect.identifier_preparer.format_table(table)

    try:
        connection.exec_driver_sql(
            f"EXPLAIN INSERT INTO {quoted} (event_id) VALUES ('') ON CONFLICT (event_id) DO NOTHING"
        ).close()
    except sa_exc.OperationalError:
        return False

    return True


def _is_whole(index: t.Any) -> bool:
    """Whether an index is one of all rows, and of all of the value."""
    options = index.get("dialect_options", {})
    return not any(option.endswith(("_where", "_length")) for option in options)


def _no_key(name: str) -> Defect:
    return Defect(
        "table-key",
        f"The column 'event_id' of the table {name!r} is neither its primary key nor unique and NOT"
        " NULL: the table could hold two records of one event.",
        "Make it the primary key, or UNIQUE and NOT NULL, and upgrade again.",
    )


def _short_columns(name: str, columns: dict[str, t.Any]) -> c.Iterator[Defect]:
    for column, needed in _LENGTHS.items():
        length = getattr(columns[column]["type"], "length", None)

        if length is not None and length < needed:
            yield Defect(
                "table-column-short",
                f"The column {column!r} of {name!r} holds {length} characters; an event may need"
                f" {needed}.",
                f"Make it a VARCHAR({needed}), as Sangho's guide defines it.",
            )


def _missing_index(
    inspector: sa.Inspector, name: str, index: str, schema: str | None
) -> c.Iterator[Defect]:
    indexes = inspector.get_indexes(name, schema=schema)

    if not any(entry["column_names"][:1] == ["processed_at"] for entry in indexes):
        yield Defect(
            "table-index",
            f"The table {name!r} has no index on 'processed_at': each cleanup reads all of it.",
            lacks=f"the index {index!r}",
            level="warning",
        )


def _mysql(connection: sa.Connection, name: str, schema: str | None) -> c.Iterator[Defect]:
    statement = sa.text(
        "SELECT c.collation_name, t.engine FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE table_schema = COALESCE(:schema, DATABASE())"
        " AND table_name = :name AND column_name = 'event_id'"
    )
    collation, engine = connection.execute(statement, {"schema": schema, "name": name}).one()

    if collation is not None and not collation.endswith("_bin"):
        yield Defect(
            "table-collation",
            f"The column 'event_id' of {name!r} takes two ids that differ in case only for one:"
            f" its collation is {collation}. The second event would be lost.",
            lacks="a collation of 'event_id' that tells 'evt_a' from 'evt_A'",
        )

    if engine.lower() != "innodb":
        yield Defect(
            "table-engine",
            f"The table {name!r} is stored by {engine}, which has no transactions: an event whose"
            " handler fails stays recorded, and is lost.",
            lacks="transactions (ENGINE=InnoDB)",
        )


def _nullable_key(connection: sa.Connection, name: str, schema: str | None) -> c.Iterator[Defect]:
    """SQLite's ``PRIMARY KEY`` alone takes NULL, as often as one likes, unlike any other's."""
    table = sa.table(name, sa.column("event_id"), schema=schema)
    nameless = sa.select(sa.exists().where(table.c.event_id.is_(None)))

    if connection.execute(nameless).scalar_one():
        yield Defect(
            "table-null-ids",
            f"The table {name!r} has rows without an event_id, which record nothing.",
            f"Run DELETE FROM {name} WHERE event_id IS NULL, and upgrade again.",
        )
    else:
        yield Defect(
            "table-nullable-key",
            f"The column 'event_id' of {name!r} takes NULL: SQLite's PRIMARY KEY does not exclude"
            " it.",
            lacks="NOT NULL on 'event_id'",
            level="advice",
        )
