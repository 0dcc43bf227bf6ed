"""Alembic environment of ``flask sangho upgrade``. An app with an Alembic environment of its own
uses the revisions beside this file through ``version_locations``, and not this file.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes.get("connection")

if connection is None:
    raise SystemExit(
        "Run 'flask sangho upgrade'; it passes the app's database to this environment."
    )

context.configure(connection=connection, version_table=context.config.attributes["version_table"])

with context.begin_transaction():
    context.run_migrations()
