"""The table by model, by the packaged revision, by Flask-Migrate and by hand from the guide."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import io
import itertools
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import time
import typing as t

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from click.testing import Result
from flask_migrate import Migrate  # type: ignore[import-untyped]

from flask_sangho_webhooks import (
    Event,
    migrate,
    ProcessedWebhookEventMixin,
    RetryLater,
    SanghoWebhooks,
)
from flask_sangho_webhooks.migrate import migrations_directory, VERSION_TABLE
from flask_sangho_webhooks.testing import SanghoTestClient

from .commands import environment, flask, MIGRATED_SHOP, write_app
from .conftest import make_database
from .support import SECRET, Shop, TYPE

TABLE = "processed_webhook_events"
INDEX = "idx_webhook_processed_at"
UP_TO_DATE = f"The table {TABLE!r} is up to date.\n"
CREATED = f"The table {TABLE!r} was created.\n"
ADDED = {
    "sqlite": f"the index {INDEX!r} and NOT NULL on 'event_id'",
    "postgresql": f"the index {INDEX!r}",
    "mariadb": f"the index {INDEX!r} and a collation of 'event_id' that tells 'evt_a' from 'evt_A'",
}


@pytest.fixture
def shop(database_url: str) -> c.Iterator[Shop]:
    """A shop whose database has no tables yet, on a database of each kind in turn."""
    shop = Shop(database_url)
    yield shop
    shop.__exit__()


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> c.Iterator[Shop]:
    shop = Shop(sqlite_url)
    yield shop
    shop.__exit__()


def upgrade(shop: Shop, *options: str) -> Result:
    return shop.app.test_cli_runner().invoke(args=["sangho", "upgrade", *options])


def adopted(shop: Shop) -> str:
    """What an upgrade says of a table that was made by hand without the index."""
    added = ADDED[engine_of(shop).dialect.name]
    return f"The table {TABLE!r} was adopted, and was given {added}.\n"


def engine_of(shop: Shop) -> sa.Engine:
    with shop.app.app_context():
        return shop.db.engine


def execute(shop: Shop, *statements: str) -> None:
    with engine_of(shop).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def make_by_hand(
    shop: Shop,
    columns: dict[str, str | None] | None = None,
    *,
    table: str = TABLE,
    index: bool = True,
) -> None:
    """Create the table as the guide says, but for other definitions of columns, or None."""
    now = "CURRENT_TIMESTAMP" if shop.url.startswith("sqlite") else "NOW()"
    definitions = {
        "event_id": "VARCHAR(50) PRIMARY KEY",
        "event_type": "VARCHAR(100) NOT NULL",
        "processed_at": f"TIMESTAMP DEFAULT {now}",
        **(columns or {}),
    }
    body = ", ".join(f"{name} {kind}" for name, kind in definitions.items() if kind)
    execute(shop, f"CREATE TABLE {table} ({body})")

    if index:
        execute(shop, f"CREATE INDEX {INDEX} ON {table} (processed_at)")


def make_by_model(shop: Shop) -> None:
    with shop.app.app_context():
        shop.db.create_all()


def make_by_revision(shop: Shop) -> None:
    assert upgrade(shop).exit_code == 0


def reflect(shop: Shop) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(engine_of(shop))
    return metadata


def schema(shop: Shop) -> dict[str, str]:
    """All tables of the database with their columns, keys and indexes."""
    inspector = sa.inspect(engine_of(shop))
    return {
        table: str(
            (
                inspector.get_columns(table),
                inspector.get_pk_constraint(table),
                inspector.get_indexes(table),
            )
        )
        for table in inspector.get_table_names()
    }


def differences(shop: Shop, metadata: sa.MetaData) -> list[t.Any]:
    """What Alembic finds between the table in the database and the one in the metadata."""
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "include_object": lambda item, name, kind, *_: kind != "table" or name == TABLE,
    }

    with engine_of(shop).connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))


def versions(shop: Shop) -> list[str]:
    with engine_of(shop).connect() as connection:
        return list(connection.scalars(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")))


# ------------------------------------------------------------------ comparison


def test_model_revision_and_guide_agree(shop: Shop) -> None:
    makers = {"model": make_by_model, "revision": make_by_revision, "guide": make_by_hand}
    schemas = {"metadata": shop.db.metadata}

    for name, make in makers.items():
        make(shop)
        schemas[name] = reflect(shop)
        reflect(shop).drop_all(engine_of(shop))

    for (name, make), (other, metadata) in itertools.product(makers.items(), schemas.items()):
        make(shop)
        found = differences(shop, metadata)
        reflect(shop).drop_all(engine_of(shop))

        assert found == [], (name, other)


def test_adopted_table_agrees_with_the_model(shop: Shop) -> None:
    make_by_hand(shop)
    upgrade(shop)

    assert differences(shop, shop.db.metadata) == []


@pytest.mark.parametrize(
    ("column", "definition"),
    [
        ("event_type", "VARCHAR(90) NOT NULL"),
        ("event_type", "VARCHAR(100)"),
        ("processed_at", "TIMESTAMP NULL"),
        ("note", "VARCHAR(10)"),
    ],
    ids=["type", "nullable", "default", "column"],
)
def test_comparison_notices(shop: Shop, column: str, definition: str) -> None:
    make_by_hand(shop, {column: definition})

    assert any(column in str(difference) for difference in differences(shop, shop.db.metadata))


# --------------------------------------------------------- flask sangho upgrade


def test_upgrade_of_an_empty_database(shop: Shop) -> None:
    result = upgrade(shop)

    assert (result.exit_code, result.output) == (0, CREATED)
    assert versions(shop) == ["sangho_0001"]
    assert differences(shop, shop.db.metadata) == []


def test_second_upgrade_changes_nothing(shop: Shop) -> None:
    upgrade(shop)
    before = schema(shop)
    result = upgrade(shop)

    assert (result.exit_code, result.output) == (0, UP_TO_DATE)
    assert schema(shop) == before


def test_upgrade_adopts_a_table_made_by_hand(shop: Shop) -> None:
    make_by_hand(shop, index=False)
    execute(shop, f"INSERT INTO {TABLE} (event_id, event_type) VALUES ('evt_old', '{TYPE}')")
    shop.webhooks.on(TYPE)(lambda event: None)

    assert upgrade(shop).output == adopted(shop)
    assert upgrade(shop).output == UP_TO_DATE
    assert [index["name"] for index in sa.inspect(engine_of(shop)).get_indexes(TABLE)] == [INDEX]
    assert shop.deliver("evt_old").json == {"received": True, "duplicate": True}
    assert shop.deliver("EVT_OLD").json == {"received": True}
    assert shop.recorded() == ["EVT_OLD", "evt_old"]


def test_upgrade_gives_a_table_without_transactions_some(mariadb_database_url: str) -> None:
    shop = Shop(mariadb_database_url)
    make_by_model(shop)
    execute(shop, f"ALTER TABLE {TABLE} ENGINE=MyISAM")
    attempts = []

    @shop.webhooks.on(TYPE)
    def fail_once(event: object) -> None:
        attempts.append(event)

        if len(attempts) == 1:
            raise RetryLater

    assert upgrade(shop).output == (
        f"The table {TABLE!r} was adopted, and was given transactions (ENGINE=InnoDB).\n"
    )
    assert shop.deliver().status_code == 503
    assert shop.deliver().json == {"received": True}
    shop.__exit__()


def test_adopting_keeps_an_index_of_another_name(shop: Shop) -> None:
    make_by_hand(shop, index=False)
    execute(shop, f"CREATE INDEX by_time ON {TABLE} (processed_at)")
    upgrade(shop)

    assert [i["name"] for i in sa.inspect(engine_of(shop)).get_indexes(TABLE)] == ["by_time"]


def test_adopting_keeps_the_length_of_ids(mariadb_database_url: str) -> None:
    shop = Shop(mariadb_database_url)
    make_by_hand(shop, {"event_id": "VARCHAR(80) PRIMARY KEY"})
    execute(shop, f"INSERT INTO {TABLE} (event_id, event_type) VALUES ('{'e' * 80}', '')")
    result = upgrade(shop)

    assert result.exit_code == 0
    assert shop.recorded() == ["e" * 80]
    shop.__exit__()


@pytest.mark.parametrize(
    ("column", "definition", "message"),
    [
        ("event_id", "VARCHAR(50) NOT NULL", "Make it the primary key"),
        ("event_type", None, "without the column 'event_type'. Add the column"),
        ("processed_at", None, "without the column 'processed_at'. Add the column"),
    ],
    ids=["primary key", "type", "time"],
)
def test_unusable_table_is_refused(
    shop: Shop, column: str, definition: str | None, message: str
) -> None:
    make_by_hand(shop, {column: definition}, index=False)
    before = schema(shop)
    result = upgrade(shop)

    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
    assert schema(shop) == before


@pytest.mark.parametrize(
    ("columns", "messages"),
    [
        ({"tenant": "INTEGER NOT NULL"}, ["Give the column 'tenant' a default"]),
        (
            {"tenant": "INTEGER NOT NULL", "shop": "INTEGER NOT NULL"},
            ["column 'tenant'", "column 'shop'"],
        ),
    ],
    ids=["one", "two"],
)
@pytest.mark.parametrize("index", [True, False])
def test_table_that_can_record_nothing_is_not_adopted(
    shop: Shop, columns: dict[str, str | None], messages: list[str], index: bool
) -> None:
    make_by_hand(shop, columns, index=index)
    before = schema(shop)
    result = upgrade(shop)

    assert result.exit_code == 1
    assert all(message in result.output for message in messages), result.output
    assert schema(shop) == before


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_table_with_short_columns_is_not_adopted(
    request: pytest.FixtureRequest, dialect: str
) -> None:
    shop = Shop(make_database(dialect, request))
    short = {"event_id": "VARCHAR(10) PRIMARY KEY", "event_type": "VARCHAR(20) NOT NULL"}
    make_by_hand(shop, dict(short), index=False)
    before = schema(shop)
    result = upgrade(shop)

    assert result.exit_code == 1
    assert "The column 'event_id'" in result.output
    assert "Make it a VARCHAR(50)" in result.output
    assert "Make it a VARCHAR(100)" in result.output
    assert schema(shop) == before
    shop.__exit__()


def test_sqlite_holds_more_than_a_short_column_says(sqlite_shop: Shop) -> None:
    make_by_hand(sqlite_shop, {"event_id": "VARCHAR(10) NOT NULL PRIMARY KEY"})
    sqlite_shop.webhooks.on(TYPE)(lambda event: None)

    assert upgrade(sqlite_shop).exit_code == 0
    assert sqlite_shop.deliver("evt_" + "1" * 40).json == {"received": True}
    assert sqlite_shop.recorded() == ["evt_" + "1" * 40]


SERIAL = {
    "sqlite": "INTEGER NOT NULL PRIMARY KEY",
    "postgresql": "SERIAL PRIMARY KEY",
    "mysql": "INTEGER AUTO_INCREMENT PRIMARY KEY",
    "mariadb": "INTEGER AUTO_INCREMENT PRIMARY KEY",
}


def make_with_a_serial_number(shop: Shop, **columns: str) -> None:
    """As an app makes it whose tables all have an ``id``."""
    definitions = {
        "id": SERIAL[engine_of(shop).dialect.name],
        "event_id": "VARCHAR(50) NOT NULL UNIQUE",
        **columns,
    }
    make_by_hand(shop, dict(definitions))


def test_unique_id_beside_another_key_is_adopted(shop: Shop) -> None:
    make_with_a_serial_number(shop)
    execute(shop, f"INSERT INTO {TABLE} (event_id, event_type) VALUES ('evt_old', '{TYPE}')")
    result = upgrade(shop)

    assert result.exit_code == 0, result.output
    assert upgrade(shop).output == UP_TO_DATE
    assert shop.app.test_cli_runner().invoke(args=["sangho", "check"]).output.count("[table-") == 0
    assert shop.recorded() == ["evt_old"]


def test_unique_id_beside_another_key_lets_an_event_through_once(shop: Shop) -> None:
    make_with_a_serial_number(shop)
    make_by_model(shop)
    upgrade(shop)
    fails = [True]

    @shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        shop.grant(event.id)
        shop.db.session.flush()
        time.sleep(0.05)

        if event.id == "evt_fails" and fails.pop():
            raise RetryLater

    client = SanghoTestClient(shop.app)
    answers = client.deliver_concurrently(6, TYPE, event_id="evt_1")
    others = [client.deliver(TYPE, event_id=f"evt_{number}") for number in (2, 3)]

    assert [answer.json for answer in answers].count({"received": True}) == 1
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert [answer.json for answer in others] == [{"received": True}] * 2
    assert shop.deliver().json == {"received": True, "duplicate": True}
    assert shop.deliver("evt_fails").status_code == 503
    assert shop.recorded() == shop.grants() == ["evt_1", "evt_2", "evt_3"]
    fails.append(False)
    assert shop.deliver("evt_fails").json == {"received": True}

    with shop.app.app_context():
        guard = shop.webhooks.endpoint().guard
        assert guard.forget("evt_1")
        execute(shop, f"UPDATE {TABLE} SET processed_at = '2020-01-01 00:00:00'")
        assert guard.cleanup(dt.timedelta(hours=72)) == 3


@pytest.mark.parametrize(
    "columns",
    [
        {"event_id": "VARCHAR(50) NOT NULL"},
        {"event_id": "VARCHAR(50) UNIQUE"},
        {"event_id": "VARCHAR(50) NOT NULL", "UNIQUE": "(event_id, event_type)"},
    ],
    ids=["not unique", "nullable", "with another column"],
)
def test_id_that_is_neither_key_nor_unique_is_refused(shop: Shop, columns: dict[str, str]) -> None:
    make_with_a_serial_number(shop, **columns)
    result = upgrade(shop)

    assert result.exit_code == 1
    assert "Make it the primary key, or UNIQUE and NOT NULL, and upgrade again." in result.output


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_id_that_is_unique_in_some_rows_is_refused(
    request: pytest.FixtureRequest, dialect: str
) -> None:
    shop = Shop(make_database(dialect, request))
    make_with_a_serial_number(shop, event_id="VARCHAR(50) NOT NULL")
    execute(shop, f"CREATE UNIQUE INDEX of_some ON {TABLE} (event_id) WHERE event_type = 'x'")

    assert upgrade(shop).exit_code == 1

    execute(shop, f"CREATE UNIQUE INDEX of_all ON {TABLE} (event_id)")

    assert upgrade(shop).exit_code == 0
    shop.__exit__()


def test_id_that_is_unique_in_its_beginning_is_refused(mariadb_database_url: str) -> None:
    shop = Shop(mariadb_database_url)
    make_with_a_serial_number(shop, event_id="VARCHAR(50) NOT NULL")
    execute(shop, f"CREATE UNIQUE INDEX of_some ON {TABLE} (event_id(10))")

    assert upgrade(shop).exit_code == 1
    shop.__exit__()


def test_adopted_table_takes_no_null(sqlite_shop: Shop) -> None:
    """Asked of the database itself: Alembic's comparison takes the key for NOT NULL anyhow."""
    make_by_hand(sqlite_shop)
    insert = f"INSERT INTO {TABLE} (event_type) VALUES ('kyc.updated')"
    execute(sqlite_shop, insert, f"DELETE FROM {TABLE}")
    assert upgrade(sqlite_shop).exit_code == 0

    with pytest.raises(sa.exc.IntegrityError):
        execute(sqlite_shop, insert)


def test_rows_without_an_id_are_refused(sqlite_shop: Shop) -> None:
    """SQLite lets them in, and no record of an event is one."""
    make_by_hand(sqlite_shop)
    execute(sqlite_shop, f"INSERT INTO {TABLE} (event_type) VALUES ('kyc.updated')")
    result = upgrade(sqlite_shop)

    assert result.exit_code == 1
    assert "WHERE event_id IS NULL" in result.output


def test_upgrade_makes_a_dropped_table_again(shop: Shop) -> None:
    upgrade(shop)
    execute(shop, f"DROP TABLE {TABLE}")

    assert upgrade(shop).output == CREATED
    assert differences(shop, shop.db.metadata) == []


def test_database_of_a_newer_version_is_refused(shop: Shop) -> None:
    upgrade(shop)
    execute(shop, f"UPDATE {VERSION_TABLE} SET version_num = 'sangho_9999'")
    result = upgrade(shop)

    assert result.exit_code == 1
    assert "Has a newer version of flask-sangho-webhooks upgraded this database?" in result.output


WAITING_UPGRADE = """
import sys, alembic.command, flask_sangho_webhooks.migrate, shop
runner = shop.create_app().test_cli_runner()
print("ready", flush=True)
sys.stdin.readline()
print(runner.invoke(args=["sangho", "upgrade"]).output, end="")
"""


def test_simultaneous_upgrades_all_succeed(database_url: str, tmp_path: pathlib.Path) -> None:
    write_app(tmp_path)
    upgrades = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING_UPGRADE],
            cwd=tmp_path,
            env=environment(database_url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    for process in upgrades:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in upgrades:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    said = sorted(process.communicate(timeout=60)[0] for process in upgrades)

    assert said == sorted([CREATED, *[UP_TO_DATE] * 3])


def test_upgrade_prints_one_line_and_leaves_logging_alone(
    sqlite_url: str, tmp_path: pathlib.Path
) -> None:
    write_app(tmp_path)
    done = flask(tmp_path, sqlite_url, "sangho", "upgrade")

    assert (done.stdout, done.stderr) == (CREATED, "")


def test_upgrade_configures_no_logging(sqlite_shop: Shop) -> None:
    logger = logging.getLogger("shop")
    before = (logging.root.level, list(logging.root.handlers))
    upgrade(sqlite_shop)

    assert (logging.root.level, list(logging.root.handlers)) == before
    assert not logger.disabled


def test_path_may_hold_percent_signs_and_spaces(
    sqlite_shop: Shop, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(migrations_directory(), tmp_path / "100% of %(here)s")
    monkeypatch.setattr(migrate, "migrations_directory", lambda: folder)

    assert upgrade(sqlite_shop).output == CREATED


def test_upgrade_of_a_database_in_memory() -> None:
    shop = Shop("sqlite://")
    shop.webhooks.on(TYPE)(lambda event: None)

    assert upgrade(shop).output == CREATED
    assert shop.deliver().json == {"received": True}
    shop.__exit__()


def test_upgrade_on_a_connection_that_begins_by_itself(sqlite_shop: Shop) -> None:
    @sa.event.listens_for(engine_of(sqlite_shop), "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    assert upgrade(sqlite_shop).output == CREATED


def test_app_starts_without_alembic(tmp_path: pathlib.Path) -> None:
    write_app(tmp_path)
    check = "import shop, sys; shop.create_app(); sys.exit('alembic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env=environment("sqlite://"), timeout=60
    )

    assert done.returncode == 0


# ---------------------------------------------------------- several endpoints


@pytest.fixture
def two_endpoints(database_url: str, tmp_path: pathlib.Path) -> c.Iterator[Shop]:
    """A shop with a second endpoint, whose table is in another database."""
    binds = {"connect": f"sqlite:///{tmp_path}/connect.sqlite3"}
    shop = Shop(database_url, config={"SQLALCHEMY_BINDS": binds, "SANGHO_CONNECT_SECRET": SECRET})

    class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"
        __bind_key__ = "connect"

    connect = SanghoWebhooks(
        shop.db,
        name="connect",
        config_prefix="SANGHO_CONNECT_",
        path="/connect",
        model=ConnectEvent,
    )
    shop.app.register_blueprint(connect.blueprint)

    for webhooks in (shop.webhooks, connect):
        webhooks.on(TYPE)(lambda event: None)

    yield shop
    shop.__exit__()


def test_upgrade_serves_every_endpoint(two_endpoints: Shop) -> None:
    shop = two_endpoints

    for said in (CREATED, UP_TO_DATE):
        assert upgrade(shop).output == said + said.replace(TABLE, "connect_events")

    assert [shop.deliver(path=path).json for path in ("/webhook", "/connect")] == [
        {"received": True},
        {"received": True},
    ]


def test_own_table_made_by_hand_is_adopted(shop: Shop) -> None:
    class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "connect_events"

    connect = SanghoWebhooks(shop.db, name="connect", path="/connect", model=ConnectEvent)
    shop.app.register_blueprint(connect.blueprint)
    connect.on(TYPE)(lambda event: None)
    make_by_hand(shop, table="connect_events", index=False)

    assert upgrade(shop).exit_code == 0
    assert [shop.deliver(event_id, path="/connect").json for event_id in ("evt_a", "evt_A")] == [
        {"received": True}
    ] * 2
    (index,) = sa.inspect(engine_of(shop)).get_indexes("connect_events")
    assert index["name"] == "idx_connect_events_processed_at"


# --------------------------------------------------------------- Flask-Migrate


def test_flask_migrate_creates_the_table(database_url: str, tmp_path: pathlib.Path) -> None:
    write_app(tmp_path, MIGRATED_SHOP)

    for step in ("init", "migrate", "upgrade"):
        done = flask(tmp_path, database_url, "db", step)
        assert done.returncode == 0, done.stderr

    again = flask(tmp_path, database_url, "db", "migrate")
    assert "No changes in schema detected" in again.stdout + again.stderr
    assert len(list((tmp_path / "migrations" / "versions").glob("*.py"))) == 1

    shop = Shop(database_url)
    shop.webhooks.on(TYPE)(lambda event: None)
    assert differences(shop, shop.db.metadata) == []
    assert [shop.deliver(event_id).json for event_id in ("evt_a", "evt_A")] == [
        {"received": True}
    ] * 2
    shop.__exit__()


def test_flask_migrate_keeps_a_table_made_by_hand(shop: Shop, tmp_path: pathlib.Path) -> None:
    write_app(tmp_path, MIGRATED_SHOP)
    make_by_hand(shop, index=False)
    execute(shop, f"INSERT INTO {TABLE} (event_id, event_type) VALUES ('evt_old', '{TYPE}')")
    shop.webhooks.on(TYPE)(lambda event: None)

    for step in ("init", "migrate", "upgrade", "check"):
        done = flask(tmp_path, shop.url, "db", step)
        assert done.returncode == 0, done.stderr

    assert differences(shop, shop.db.metadata) == []
    assert shop.deliver("evt_old").json == {"received": True, "duplicate": True}


BRANCHED_SHOP = (
    MIGRATED_SHOP.replace("Migrate(app, db)", "migrate.init_app(app, db)")
    + """

import os
from flask_sangho_webhooks.migrate import migrations_directory

migrate = Migrate()


@migrate.configure
def add_sangho(config):
    folders = ["migrations/versions", str(migrations_directory() / "versions")]
    config.set_main_option("version_locations", os.pathsep.join(folders))
    config.set_main_option("version_path_separator", "os")
    config.set_main_option("path_separator", "os")
    return config
"""
)


def test_packaged_revision_through_flask_migrate(
    postgresql_url: str, tmp_path: pathlib.Path
) -> None:
    write_app(tmp_path, BRANCHED_SHOP)

    for line in (
        "init",
        "revision --head base --branch-label shop --version-path migrations/versions",
        "upgrade heads",
        "check",
    ):
        done = flask(tmp_path, postgresql_url, "db", *line.split())
        assert done.returncode == 0, (line, done.stderr)

    done = flask(tmp_path, postgresql_url, "db", "current")
    assert "sangho_0001" in done.stdout


def test_upgrade_leaves_an_empty_database_to_flask_migrate(shop: Shop) -> None:
    Migrate(shop.app, shop.db)
    result = upgrade(shop)

    assert result.exit_code == 1
    assert "Run 'flask db migrate' and 'flask db upgrade'" in result.output
    assert schema(shop) == {}


def test_upgrade_in_spite_of_flask_migrate(shop: Shop) -> None:
    Migrate(shop.app, shop.db)

    assert upgrade(shop, "--force").output == CREATED
    assert set(schema(shop)) == {TABLE, VERSION_TABLE}


def test_upgrade_beside_flask_migrate_adopts_and_remembers_nothing(shop: Shop) -> None:
    Migrate(shop.app, shop.db)
    make_by_hand(shop, index=False)
    shop.webhooks.on(TYPE)(lambda event: None)

    assert upgrade(shop).output == adopted(shop)
    assert upgrade(shop).output == UP_TO_DATE
    assert set(schema(shop)) == {TABLE}
    assert [shop.deliver(event_id).json for event_id in ("evt_a", "evt_A")] == [
        {"received": True}
    ] * 2


# ------------------------------------------------------- an Alembic of the app

ENVIRONMENT = """\
from alembic import context

if context.is_offline_mode():
    context.configure(dialect_name="postgresql")
else:
    context.configure(connection=context.config.attributes["connection"])

with context.begin_transaction():
    context.run_migrations()
"""

REVISION = """\
import sqlalchemy as sa
from alembic import op

revision = "shop_0001"
down_revision = None


def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("orders")
"""


def packaged_versions() -> pathlib.Path:
    return migrations_directory() / "versions"


@pytest.fixture
def alembic(tmp_path: pathlib.Path) -> Config:
    """An Alembic environment with a revision of its own and, by ``version_locations``, ours."""
    versions = tmp_path / "alembic" / "versions"
    versions.mkdir(parents=True)
    (versions.parent / "env.py").write_text(ENVIRONMENT)
    (versions / "shop_0001.py").write_text(REVISION)

    config = Config(output_buffer=io.StringIO())
    config.set_main_option("script_location", str(versions.parent))
    config.set_main_option("version_locations", f"{versions}{os.pathsep}{packaged_versions()}")
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_path_separator", "os")
    return config


def run(shop: Shop, config: Config, action: t.Callable[..., None], revision: str) -> None:
    with engine_of(shop).begin() as connection:
        config.attributes["connection"] = connection
        action(config, revision)


def test_upgrade_and_downgrade_in_the_apps_own_alembic(shop: Shop, alembic: Config) -> None:
    run(shop, alembic, command.upgrade, "heads")
    assert set(schema(shop)) == {"alembic_version", "orders", TABLE}
    assert differences(shop, shop.db.metadata) == []

    run(shop, alembic, command.downgrade, "sangho@base")
    assert set(schema(shop)) == {"alembic_version", "orders"}


def test_branch_adopts_a_table_made_by_hand(shop: Shop, alembic: Config) -> None:
    make_by_hand(shop, index=False)
    run(shop, alembic, command.upgrade, "sangho@head")

    assert len(sa.inspect(engine_of(shop)).get_indexes(TABLE)) == 1


def test_branch_as_a_script(alembic: Config) -> None:
    command.upgrade(alembic, "sangho@head", sql=True)

    assert isinstance(alembic.output_buffer, io.StringIO)
    assert f"CREATE TABLE {TABLE}" in alembic.output_buffer.getvalue()


def test_packaged_environment_says_how_to_use_it() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()))

    with pytest.raises(SystemExit, match="Run 'flask sangho upgrade'"):
        command.upgrade(config, "sangho@head")
