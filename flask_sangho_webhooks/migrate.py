"""Applies the packaged Alembic migration to an app's database."""

from __future__ import annotations

import collections.abc as c
import pathlib
import typing as t

import sqlalchemy as sa

from .errors import ConfigError
from .guards.sql import SQLGuard, unavailable
from .models import TABLE_NAME

if t.TYPE_CHECKING:
    from .extension import Endpoint

VERSION_TABLE = "sangho_alembic_version"
"""Where ``flask sangho upgrade`` remembers what it has applied, apart from an app's own Alembic."""

BRANCH = "sangho"


def migrations_directory() -> pathlib.Path:
    """The folder with the Alembic environment and the revisions.

    For ``version_locations`` of an app's own Alembic, append ``versions``.

    :raises ConfigError: if the installation lacks it.
    """
    package = pathlib.Path(__file__).parent

    # In a wheel it is part of the package; in a source tree and an editable install, beside it.
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "versions" / "sangho_0001_processed_webhook_events.py").is_file():
            return folder

    raise ConfigError("The packaged migrations are missing. Reinstall flask-sangho-webhooks.")


def upgrade_tables(endpoints: c.Iterable[Endpoint]) -> c.Iterator[str]:
    """Bring the table of each endpoint up to date.

    :return: a line on each table.
    :raises ConfigError: if a table cannot be adopted, or the database is not SQL.
    """
    guards = [e.guard for e in endpoints if isinstance(e.guard, SQLGuard)]

    if not guards:
        raise ConfigError("No endpoint of this app keeps its records in SQL; there is no table.")

    for guard in guards:
        engine = _engine(guard)

        with unavailable():
            if guard.table.name == TABLE_NAME:
                _apply_revisions(engine)
                yield f"The table {guard.table.fullname!r} is up to date."
            else:
                guard.table.create(engine, checkfirst=True)
                yield f"The table {guard.table.fullname!r} exists."


def _engine(guard: SQLGuard) -> sa.Engine:
    session = guard.db.session()
    return session.get_bind(mapper=sa.inspect(guard.model)).engine


def _apply_revisions(engine: sa.Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["version_table"] = VERSION_TABLE

    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, f"{BRANCH}@head")
