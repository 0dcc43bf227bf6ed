"""The table of processed events, as the guide defines it."""

from __future__ import annotations

import datetime as dt
import typing as t

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.dialects import mysql

from .event import MAX_ID_LENGTH, MAX_TYPE_LENGTH

TABLE_NAME = "processed_webhook_events"
INDEX_NAME = "idx_webhook_processed_at"

# MySQL and MariaDB compare text without regard to case unless told otherwise; two ids that differ
# in case only would be one event, and the second would be lost.
EVENT_ID_TYPE = sa.String(MAX_ID_LENGTH).with_variant(
    mysql.VARCHAR(MAX_ID_LENGTH, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)


class ProcessedWebhookEventMixin:
    """The columns and the index of a table of processed events, for a model of your own:

    .. code-block:: python

        class ConnectEvent(ProcessedWebhookEventMixin, db.Model):
            __tablename__ = "connect_events"

    Columns that you add need a default: the guard fills in none but these.
    """

    event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(EVENT_ID_TYPE, primary_key=True)
    event_type: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(MAX_TYPE_LENGTH))
    processed_at: sa_orm.Mapped[dt.datetime | None] = sa_orm.mapped_column(
        sa.TIMESTAMP(), server_default=sa.func.now()
    )
    """In UTC, by the database's clock. On MySQL and MariaDB a ``TIMESTAMP`` is shown in the time
    zone of the database session."""

    @sa_orm.declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[t.Any, ...]:
        table = str(getattr(cls, "__tablename__", TABLE_NAME))
        name = INDEX_NAME if table == TABLE_NAME else f"idx_{table}_processed_at"
        return (sa.Index(name, "processed_at"),)


def default_model(db: SQLAlchemy) -> type[t.Any]:
    """The model of ``processed_webhook_events`` in the app's own metadata, made at most once."""
    registry: sa_orm.registry = t.cast(t.Any, db.Model).registry

    for mapper in registry.mappers:
        table = mapper.local_table
        model: type[t.Any] = mapper.class_

        if isinstance(table, sa.Table) and table.name == TABLE_NAME:
            if issubclass(model, ProcessedWebhookEventMixin):
                return model

    return type(
        "ProcessedWebhookEvent",
        (ProcessedWebhookEventMixin, db.Model),
        {"__tablename__": TABLE_NAME, "__module__": __name__},
    )
