"""Create the table of processed events, or adopt one made by hand from Sangho's guide."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql

revision = "sangho_0001"
down_revision = None
branch_labels = ("sangho",)
depends_on = None

TABLE = "processed_webhook_events"
INDEX = "idx_webhook_processed_at"
COLUMNS = {"event_id", "event_type", "processed_at"}

# Byte-exact on MySQL and MariaDB, whose default takes 'evt_a' and 'evt_A' for one.
EVENT_ID = sa.String(50).with_variant(
    mysql.VARCHAR(50, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)


def upgrade() -> None:
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(TABLE):
        _adopt()
        return

    op.create_table(
        TABLE,
        sa.Column("event_id", EVENT_ID, primary_key=True),
        sa.Column("event_type", sa.String(100), nullable=False),
        sa.Column("processed_at", sa.TIMESTAMP(), server_default=sa.func.now(), nullable=True),
    )
    op.create_index(INDEX, TABLE, ["processed_at"])


def _adopt() -> None:
    """Keep the rows, add what the guard needs."""
    inspector = sa.inspect(op.get_bind())
    missing = COLUMNS - {column["name"] for column in inspector.get_columns(TABLE)}

    if missing:
        raise RuntimeError(
            f"The table {TABLE!r} exists without the column {min(missing)!r}. Rename it, or add the"
            " column as Sangho's guide defines it, and upgrade again."
        )

    if inspector.get_pk_constraint(TABLE)["constrained_columns"] != ["event_id"]:
        raise RuntimeError(
            f"The primary key of the table {TABLE!r} is not 'event_id', so two records of one event"
            " could exist. Change the key, and upgrade again."
        )

    if not any(i["column_names"][:1] == ["processed_at"] for i in inspector.get_indexes(TABLE)):
        op.create_index(INDEX, TABLE, ["processed_at"])

    if op.get_context().dialect.name in ("mysql", "mariadb"):
        op.alter_column(TABLE, "event_id", type_=EVENT_ID, existing_nullable=False)


def downgrade() -> None:
    op.drop_table(TABLE)
