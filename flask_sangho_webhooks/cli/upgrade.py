"""``flask sangho upgrade``."""

from __future__ import annotations

import click
from flask import current_app

from ..migrate import upgrade_tables
from . import endpoints, sangho


@sangho.command()
@click.option("--force", is_flag=True, help="Create the table in an app that uses Flask-Migrate.")
def upgrade(force: bool) -> None:
    """Create the table of processed events, or adopt one that is there.

    For apps without Alembic. Run it with every deployment: it does what is not done yet, and
    remembers that in the table 'sangho_alembic_version'.

    A table made by hand from Sangho's guide keeps its rows and gets what it lacks: the index, and
    on MySQL and MariaDB a collation that tells 'evt_a' from 'evt_A'.

    In an app that uses Flask-Migrate, 'flask db migrate' and 'flask db upgrade' create the table.
    There, this command only completes a table that was made by hand, and remembers nothing.
    """
    migrated = "migrate" in current_app.extensions and not force

    for line in upgrade_tables(endpoints(None), flask_migrate=migrated):
        click.echo(line)
