"""Brings the tables of processed events up to date, with the packaged Alembic migration."""

from __future__ import annotations

import collections.abc as c
import contextlib
import pathlib
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from sqlalchemy.dialects import mysql

from .errors import ConfigError, GuardUnavailable
from .guards import SQLGuard, unavailable
from .models import COLUMNS, index_name, TABLE_NAME

if t.TYPE_CHECKING:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from .extension import Endpoint

VERSION_TABLE = "sangho_alembic_version"
"""Where ``flask sangho upgrade`` remembers what it has applied, apart from an app's own Alembic."""

BRANCH = "sangho"

_LOCK_TIMEOUT = 60


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


def upgrade_tables(
    endpoints: c.Iterable[Endpoint], *, flask_migrate: bool = False
) -> c.Iterator[str]:
    """Create the table of each endpoint, or adopt the one that is there.

    :param flask_migrate: the app's own migrations create its tables. Then a table is adopted, but
        not created, and no version table is kept: the next ``flask db migrate`` would drop it.
    :return: a line on each table.
    :raises ConfigError: if a table cannot be adopted, or no endpoint keeps its records in SQL.
        Nothing is changed in its database then.
    :raises GuardUnavailable: if the database cannot be reached, or is locked.
    """
    guards = [e.guard for e in endpoints if isinstance(e.guard, SQLGuard)]

    if not guards:
        raise ConfigError("No endpoint of this app keeps its records in SQL; there is no table.")

    for guard in guards:
        bind = guard.db.session().get_bind(mapper=sa.inspect(guard.model))

        with unavailable(), bind.engine.connect() as connection:
            transaction = connection.begin()

            with _alone(connection):
                _upgrade_table(connection, guard.table, flask_migrate)
                transaction.commit()

        yield f"The table {guard.table.fullname!r} is up to date."


def _upgrade_table(connection: sa.Connection, table: sa.Table, flask_migrate: bool) -> None:
    exists = sa.inspect(connection).has_table(table.name, schema=table.schema)

    if exists:
        # Also before Alembic makes its version table, which MariaDB would not roll back.
        _adopt_table(connection, table)
    elif flask_migrate:
        raise ConfigError(
            f"The table {table.fullname!r} does not exist, and this app uses Flask-Migrate. Run"
            " 'flask db migrate' and 'flask db upgrade', which create it. '--force' creates it here"
            " and now, with a version table that the next 'flask db migrate' will want to drop."
        )

    if table.fullname == TABLE_NAME and not flask_migrate:
        _apply_revisions(connection, start_over=not exists)
    elif not exists:
        table.create(connection)


def adopt(context: MigrationContext, name: str, index: str, schema: str | None = None) -> None:
    """Keep the rows of a table made by hand, and add what the guard needs.

    :param context: of Alembic, on the database of the table.
    :param index: the name for an index on ``processed_at``, if there is none.
    :raises ConfigError: if that is not enough. Nothing is changed then.
    """
    from alembic.operations import Operations

    operations = Operations(context)
    connection = operations.get_bind()
    _refuse_unusable(connection, name, schema)
    indexes = sa.inspect(connection).get_indexes(name, schema=schema)

    if not any(entry["column_names"][:1] == ["processed_at"] for entry in indexes):
        operations.create_index(index, name, ["processed_at"], schema=schema)

    if connection.dialect.name in ("mysql", "mariadb"):
        _make_byte_exact(operations, name, schema)
    elif connection.dialect.name == "sqlite":
        _refuse_null(operations, name, schema)


def _apply_revisions(connection: sa.Connection, *, start_over: bool) -> None:
    """:param start_over: the table was dropped since, or never made: forget what was applied."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    if start_over:
        sa.Table(VERSION_TABLE, sa.MetaData()).drop(connection, checkfirst=True)

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE

    try:
        command.upgrade(config, f"{BRANCH}@head")
    except CommandError as error:
        raise ConfigError(
            f"Alembic says: {error}. Has a newer version of flask-sangho-webhooks upgraded this"
            " database? Install that one."
        ) from error


def _adopt_table(connection: sa.Connection, table: sa.Table) -> None:
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection)
    adopt(context, table.name, index_name(table), table.schema)


def _refuse_unusable(connection: sa.Connection, name: str, schema: str | None = None) -> None:
    inspector = sa.inspect(connection)
    present = {column["name"] for column in inspector.get_columns(name, schema=schema)}
    missing = [column for column in COLUMNS if column not in present]

    if missing:
        raise ConfigError(
            f"The table {name!r} exists without the column {missing[0]!r}. Add the column as"
            " Sangho's guide defines it, or rename the table, and upgrade again."
        )

    if inspector.get_pk_constraint(name, schema=schema)["constrained_columns"] != ["event_id"]:
        raise ConfigError(
            f"The primary key of the table {name!r} is not 'event_id', so it could hold two records"
            " of one event. Make it the primary key, and upgrade again."
        )


def _make_byte_exact(operations: Operations, name: str, schema: str | None) -> None:
    column = sa.text(
        "SELECT collation_name, character_maximum_length FROM information_schema.columns"
        " WHERE table_schema = COALESCE(:schema, DATABASE())"
        " AND table_name = :name AND column_name = 'event_id'"
    )
    parameters = {"schema": schema, "name": name}
    collation, length = operations.get_bind().execute(column, parameters).one()

    if collation is not None and not collation.endswith("_bin"):
        exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
        operations.alter_column(
            name, "event_id", type_=exact, existing_nullable=False, schema=schema
        )


def _refuse_null(operations: Operations, name: str, schema: str | None) -> None:
    """SQLite's ``PRIMARY KEY`` alone takes NULL, as often as one likes, unlike any other's."""
    columns = sa.inspect(operations.get_bind()).get_columns(name, schema=schema)
    (event_id,) = (column for column in columns if column["name"] == "event_id")

    if event_id["nullable"]:
        table = sa.table(name, sa.column("event_id"), schema=schema)
        nameless = sa.select(sa.func.count()).where(table.c.event_id.is_(None))

        if operations.get_bind().execute(nameless).scalar_one():
            raise ConfigError(
                f"The table {name!r} has rows without an event_id, which record nothing. Run"
                f" DELETE FROM {name} WHERE event_id IS NULL, and upgrade again."
            )

        with operations.batch_alter_table(name, schema=schema, recreate="always") as batch:
            batch.alter_column("event_id", existing_type=event_id["type"], nullable=False)


@contextlib.contextmanager
def _alone(connection: sa.Connection) -> c.Iterator[None]:
    """Let the replicas of an app, which start together, upgrade one after the other."""
    dialect = connection.dialect.name

    if dialect == "sqlite":
        # sqlite3 begins no transaction before DDL; in this one, all of it is done or none.
        if not getattr(connection.connection.driver_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif dialect == "postgresql":
        key = sa.func.hashtextextended(VERSION_TABLE, 0)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    elif dialect in ("mysql", "mariadb"):
        lock = sa.func.get_lock(VERSION_TABLE, _LOCK_TIMEOUT)

        if connection.execute(sa.select(lock)).scalar() != 1:
            raise GuardUnavailable("Another upgrade of this database has not finished.")

    try:
        yield
    finally:
        if dialect in ("mysql", "mariadb"):
            with contextlib.suppress(sa_exc.SQLAlchemyError):
                connection.execute(sa.select(sa.func.release_lock(VERSION_TABLE)))
