"""Brings the tables of processed events up to date, with the packaged Alembic migration."""

from __future__ import annotations

import collections.abc as c
import contextlib
import pathlib
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from sqlalchemy.dialects import mysql

from ._table import Defect, find_defects, find_demands
from .errors import ConfigError, GuardUnavailable
from .guards import SQLGuard, unavailable
from .models import index_name, MYSQL, TABLE_NAME

if t.TYPE_CHECKING:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from .extension import Endpoint

VERSION_TABLE = "sangho_alembic_version"
"""Where ``flask sangho upgrade`` remembers what it has applied, apart from an app's own Alembic."""

BRANCH = "sangho"

_LOCK_TIMEOUT = 60
"""Seconds to wait for another upgrade, on MySQL and MariaDB."""


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
        bind = guard.database()

        with unavailable(), bind.engine.connect() as connection:
            transaction = connection.begin()

            with _alone(connection):
                line = _upgrade_table(connection, guard.table, flask_migrate)
                transaction.commit()

        yield line


def _upgrade_table(connection: sa.Connection, table: sa.Table, flask_migrate: bool) -> str:
    """:return: what was done."""
    exists = sa.inspect(connection).has_table(table.name, schema=table.schema)
    added: list[str] = []

    if exists:
        # Also before Alembic makes its version table, which MariaDB would not roll back.
        added = _adopt_table(connection, table)
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

    if not exists:
        return f"The table {table.fullname!r} was created."

    if added:
        return f"The table {table.fullname!r} was adopted, and was given {_join(added)}."

    return f"The table {table.fullname!r} is up to date."


def _join(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def adopt(context: MigrationContext, name: str, index: str, schema: str | None = None) -> list[str]:
    """Keep the rows of a table made by hand, and add what the guard needs.

    :param context: of Alembic, on the database of the table.
    :param index: the name for an index on ``processed_at``, if there is none.
    :return: what was added.
    :raises ConfigError: if that is not enough. Nothing is changed then.
    """
    from alembic.operations import Operations

    operations = Operations(context)
    defects = find_defects(operations.get_bind(), name, index, schema)

    _refuse(defects)
    fixable = [defect for defect in defects if defect.code in _FIXES]

    for defect in fixable:
        _FIXES[defect.code](operations, name, index, schema)

    return [defect.lacks for defect in fixable]


def _refuse(defects: list[Defect]) -> None:
    """:raises ConfigError: naming all that a person must do first."""
    beyond = [f"{defect.message} {defect.fix}" for defect in defects if defect.fix is not None]

    if beyond:
        raise ConfigError("\n".join(beyond))


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


def _adopt_table(connection: sa.Connection, table: sa.Table) -> list[str]:
    from alembic.migration import MigrationContext

    _refuse(find_demands(connection, table))
    context = MigrationContext.configure(connection)
    return adopt(context, table.name, index_name(table), table.schema)


def _add_index(operations: Operations, name: str, index: str, schema: str | None) -> None:
    operations.create_index(index, name, ["processed_at"], schema=schema)


def _make_byte_exact(operations: Operations, name: str, index: str, schema: str | None) -> None:
    event_id = _event_id(operations, name, schema)
    exact = mysql.VARCHAR(event_id["type"].length, charset="ascii", collation="ascii_bin")
    operations.alter_column(name, "event_id", type_=exact, existing_nullable=False, schema=schema)


def _use_innodb(operations: Operations, name: str, index: str, schema: str | None) -> None:
    preparer = operations.get_bind().dialect.identifier_preparer
    table = preparer.format_table(sa.Table(name, sa.MetaData(), schema=schema))
    operations.execute(f"ALTER TABLE {table} ENGINE=InnoDB")


def _refuse_null(operations: Operations, name: str, index: str, schema: str | None) -> None:
    event_id = _event_id(operations, name, schema)

    with operations.batch_alter_table(name, schema=schema, recreate="always") as batch:
        batch.alter_column("event_id", existing_type=event_id["type"], nullable=False)


_FIXES: dict[str, c.Callable[[Operations, str, str, str | None], None]] = {
    "table-index": _add_index,
    "table-collation": _make_byte_exact,
    "table-engine": _use_innodb,
    "table-nullable-key": _refuse_null,
}


def _event_id(operations: Operations, name: str, schema: str | None) -> t.Any:
    columns = sa.inspect(operations.get_bind()).get_columns(name, schema=schema)
    return next(column for column in columns if column["name"] == "event_id")


@contextlib.contextmanager
def _alone(connection: sa.Connection) -> c.Iterator[None]:
    """Let the replicas of an app, which start together, upgrade one after the other."""
    dialect = connection.dialect.name

    if dialect == "sqlite":
        # sqlite3 begins no transaction before DDL; in this one, all of it is done or none.
        if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif dialect == "postgresql":
        key = sa.func.hashtextextended(VERSION_TABLE, 0)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    elif dialect in MYSQL:
        lock = sa.func.get_lock(VERSION_TABLE, _LOCK_TIMEOUT)

        if connection.execute(sa.select(lock)).scalar() != 1:
            raise GuardUnavailable("Another upgrade of this database has not finished.")

    try:
        yield
    finally:
        if dialect in MYSQL:
            with contextlib.suppress(sa_exc.SQLAlchemyError):
                connection.execute(sa.select(sa.func.release_lock(VERSION_TABLE)))
