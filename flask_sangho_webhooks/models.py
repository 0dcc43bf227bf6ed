"""The table of processed events, as the guide defines it."""

from __future__ import annotations

import datetime as dt
import typing as t

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask_sqlalchemy import SQLAlchemy

from .errors import ConfigError
from .event import MAX_ID_LENGTH, MAX_TYPE_LENGTH

TABLE_NAME = "processed_webhook_events"
INDEX_NAME = "idx_webhook_processed_at"
COLUMNS = ("event_id", "event_type", "processed_at")

MYSQL = ("mysql", "mariadb")
"""The dialects of one family of databases."""

# MySQL and MariaDB compare text without regard to case unless told otherwise; two ids that differ
# in case only would be one event, and the second would be lost.
EVENT_ID_TYPE = sa.String(MAX_ID_LENGTH).with_variant(
    sa.String(MAX_ID_LENGTH, collation="ascii_bin"), *MYSQL
)


class ProcessedWebhookEventMixin:
    """The columns and the index of a table of processed events, for a model of your own:

    .. code-block:: python

        class ConnectEvent(ProcessedWebhookEventMixin, db.Model):
            __tablename__ = "connect_events"

    Columns that you add need a default: the guard fills in none but these. In a dataclass, these
    are no parameters of ``__init__``.
    """

    # Without annotations: SQLAlchemy refuses annotated attributes of a mixin in models that are
    # dataclasses, unless the mixin is one too.
    event_id = t.cast("sa_orm.Mapped[str]", sa_orm.mapped_column(EVENT_ID_TYPE, primary_key=True))
    event_type = t.cast(
        "sa_orm.Mapped[str]", sa_orm.mapped_column(sa.String(MAX_TYPE_LENGTH), nullable=False)
    )
    processed_at = t.cast(
        "sa_orm.Mapped[dt.datetime | None]",
        sa_orm.mapped_column(
            sa.TIMESTAMP(), server_default=sa.func.current_timestamp(), nullable=True
        ),
    )
    """In UTC, by the database's clock; MySQL and MariaDB show it in the time zone of the session.
    The column's default, which other code may use, is in the time zone of the session on
    PostgreSQL. A record without a time is never cleaned up."""


@sa.event.listens_for(ProcessedWebhookEventMixin, "instrument_class", propagate=True)
def _add_index(mapper: sa_orm.Mapper[t.Any], model: type[t.Any]) -> None:
    """Index ``processed_at``, also where a model has ``__table_args__`` of its own."""
    table = mapper.local_table

    if mapper.inherits is None and isinstance(table, sa.Table):
        sa.Index(index_name(table), table.c.processed_at)


@sa.event.listens_for(sa.Table, "column_reflect")
def _take_key_for_not_null(
    inspector: sa.Inspector, table: sa.Table, column: t.MutableMapping[str, t.Any]
) -> None:
    """SQLite alone takes ``PRIMARY KEY``, as the guide writes it, without ``NOT NULL``. No guard
    records a NULL, so Alembic need not rebuild the table for that.
    """
    is_key = table.name == TABLE_NAME and column["name"] == "event_id"

    if is_key and inspector.dialect.name == "sqlite":
        column["nullable"] = False


def index_name(table: sa.Table) -> str:
    """The name of the index on ``processed_at``, the guide's where the table is."""
    return INDEX_NAME if table.name == TABLE_NAME else f"idx_{table.name}_processed_at"


def table_of(model: type[t.Any]) -> sa.Table:
    """The table of a model that can hold processed events.

    :raises ConfigError: if it cannot.
    """
    table = getattr(model, "__table__", None)

    if (
        not isinstance(table, sa.Table)
        or any(name not in table.c for name in COLUMNS)
        or table.primary_key.columns.keys() != ["event_id"]
    ):
        raise ConfigError(
            f"The model {model.__name__!r} cannot hold processed events. Base it on"
            " ProcessedWebhookEventMixin, which brings the columns and the primary key."
        )

    return table


def default_model(db: SQLAlchemy) -> type[t.Any]:
    """The model of ``processed_webhook_events`` in the app's own metadata: the app's, if one is
    defined by now, or else ours, made at most once.
    """
    registry: sa_orm.registry = t.cast(t.Any, db.Model).registry

    for mapper in registry.mappers:
        table = mapper.local_table

        if mapper.inherits is None and isinstance(table, sa.Table) and table.name == TABLE_NAME:
            return mapper.class_

    return type(
        "ProcessedWebhookEvent",
        (ProcessedWebhookEventMixin, db.Model),
        {"__tablename__": TABLE_NAME, "__module__": __name__},
    )
