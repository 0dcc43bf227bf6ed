"""Create the table of processed events, or adopt one made by hand from Sangho's guide."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql

from flask_sangho_webhooks.migrate import adopt

revision = "sangho_0001"
down_revision = None
branch_labels = ("sangho",)
depends_on = None

TABLE = "processed_webhook_events"
INDEX = "idx_webhook_processed_at"

# Byte-exact on MySQL and MariaDB, whose default takes 'evt_a' and 'evt_A' for one.
EVENT_ID = sa.String(50).with_variant(
    mysql.VARCHAR(50, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)


def upgrade() -> None:
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(TABLE):
        adopt(op.get_context(), TABLE, INDEX)
        return

    op.create_table(
        TABLE,
        sa.Column("event_id", EVENT_ID, primary_key=True),
        sa.Column("event_type", sa.String(100), nullable=False),
        sa.Column(
            "processed_at",
            sa.TIMESTAMP(),
            server_default=sa.func.current_timestamp(),
            nullable=True,
        ),
    )
    op.create_index(INDEX, TABLE, ["processed_at"])


def downgrade() -> None:
    op.drop_table(TABLE)
