"""``flask sangho check``: databases and Redis, each set up right and wrong."""

from __future__ import annotations

import collections.abc as c
import contextlib
import time
import typing as t

import pytest
import redis
import sqlalchemy as sa
from flask import Flask
from flask_migrate import Migrate  # type: ignore[import-untyped]
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import ProcessedWebhookEventMixin, RedisGuard, SanghoWebhooks

from .check_support import check, codes, finding, GOOD_SECRET, run_check
from .conftest import make_database
from .redis_support import free_port, valkey_server
from .support import Shop, TYPE

TABLE = "processed_webhook_events"
CONFIG = {"SANGHO_WEBHOOK_SECRET": GOOD_SECRET}


def make_shop(url: str, **config: t.Any) -> Shop:
    """A shop without tables."""
    shop = Shop(url, config={**CONFIG, **config})
    shop.webhooks.on(TYPE)(lambda event: None)
    return shop


@pytest.fixture
def shop(database_url: str) -> c.Iterator[Shop]:
    """A shop without tables, on each kind of database."""
    shop = make_shop(database_url)
    yield shop
    shop.__exit__()


@pytest.fixture
def mariadb_shop(mariadb_database_url: str) -> c.Iterator[Shop]:
    shop = make_shop(mariadb_database_url)
    yield shop
    shop.__exit__()


def execute(shop: Shop, *statements: str) -> None:
    with shop.app.app_context(), shop.db.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def make_by_hand(shop: Shop, **columns: str) -> None:
    """As Sangho's guide says, but for other columns."""
    definitions = {
        "event_id": "VARCHAR(50) PRIMARY KEY",
        "event_type": "VARCHAR(100) NOT NULL",
        "processed_at": "TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
        **columns,
    }
    body = ", ".join(f"{name} {kind}" for name, kind in definitions.items() if kind)
    execute(
        shop,
        f"CREATE TABLE {TABLE} ({body})",
        f"CREATE INDEX idx_webhook_processed_at ON {TABLE} (processed_at)",
    )


def upgrade(shop: Shop) -> None:
    result = shop.app.test_cli_runner().invoke(args=["sangho", "upgrade"])
    assert result.exit_code == 0, result.output


def snapshot(shop: Shop) -> list[t.Any]:
    """All rows of all tables."""
    with shop.app.app_context(), shop.db.engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        return [connection.exec_driver_sql(f"SELECT * FROM {name}").all() for name in names]


# ------------------------------------------------------------- the right table


def test_table_of_the_model_is_right(shop: Shop) -> None:
    with shop.app.app_context():
        shop.db.create_all()

    assert check(shop.app) == []


def test_table_of_the_upgrade_is_right(shop: Shop) -> None:
    upgrade(shop)

    assert check(shop.app) == []


def test_nothing_is_written(shop: Shop) -> None:
    upgrade(shop)
    shop.deliver(secret=GOOD_SECRET)
    before = snapshot(shop)
    check(shop.app)

    assert snapshot(shop) == before


def test_adopted_table_is_right(shop: Shop) -> None:
    make_by_hand(shop)
    before = {found["fix"] for found in check(shop.app)}
    upgrade(shop)

    assert before <= {"flask sangho upgrade"}
    assert check(shop.app) == []


# ------------------------------------------------------------- the wrong table


def test_missing_table(shop: Shop) -> None:
    found = finding(shop.app, "table-missing")

    assert found["fix"] == "flask sangho upgrade"
    assert run_check(shop.app).exit_code == 1
    assert shop.deliver(secret=GOOD_SECRET).status_code == 500


def test_missing_table_of_an_app_with_flask_migrate(shop: Shop) -> None:
    Migrate(shop.app, shop.db)
    found = finding(shop.app, "table-missing")

    assert found["fix"].startswith("flask db migrate -m")
    assert "uses Flask-Migrate" in found["message"]


def test_missing_table_beside_an_alembic_of_the_app(shop: Shop) -> None:
    execute(shop, "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)")

    assert finding(shop.app, "table-missing")["fix"].startswith("alembic revision --autogenerate")


@pytest.mark.parametrize(
    ("columns", "code", "word"),
    [
        ({"event_type": ""}, "table-column", "'event_type'"),
        (
            {"event_id": "VARCHAR(50) NOT NULL", "id": "INTEGER PRIMARY KEY"},
            "table-key",
            "two records",
        ),
        ({"tenant": "INTEGER NOT NULL"}, "table-demands-column", "'tenant'"),
    ],
)
def test_table_that_cannot_serve(shop: Shop, columns: dict[str, str], code: str, word: str) -> None:
    make_by_hand(shop, **columns)
    found = finding(shop.app, code)

    assert found["level"] == "error"
    assert word in found["message"] + found["fix"]


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_column_that_is_too_short(request: pytest.FixtureRequest, dialect: str) -> None:
    shop = make_shop(make_database(dialect, request))
    make_by_hand(shop, event_type="VARCHAR(20) NOT NULL")
    found = finding(shop.app, "table-column-short")

    assert found["level"] == "error"
    assert "VARCHAR(100)" in found["fix"]
    shop.__exit__()


def test_column_is_never_too_short_on_sqlite(sqlite_url: str) -> None:
    """There a length means nothing."""
    shop = make_shop(sqlite_url)
    make_by_hand(shop, event_id="VARCHAR(10) NOT NULL PRIMARY KEY")

    assert codes(shop.app) == []
    shop.__exit__()


@pytest.mark.parametrize(
    "columns", [{"tenant": "INTEGER NOT NULL DEFAULT 1"}, {"tenant": "INTEGER"}]
)
def test_more_columns_do_no_harm(shop: Shop, columns: dict[str, str]) -> None:
    make_by_hand(shop, **columns)
    upgrade(shop)

    assert check(shop.app) == []
    assert shop.deliver(secret=GOOD_SECRET).json == {"received": True}


def test_missing_index(shop: Shop) -> None:
    upgrade(shop)
    on = f" ON {TABLE}" if "mariadb" in shop.url else ""
    execute(shop, f"DROP INDEX idx_webhook_processed_at{on}")
    found = finding(shop.app, "table-index")

    assert (found["level"], found["fix"]) == ("warning", "flask sangho upgrade")
    assert run_check(shop.app).exit_code == 0

    upgrade(shop)

    assert check(shop.app) == []


def test_key_that_takes_null(sqlite_url: str) -> None:
    shop = make_shop(sqlite_url)
    make_by_hand(shop)

    assert codes(shop.app) == ["table-nullable-key"]

    execute(shop, f"INSERT INTO {TABLE} (event_type) VALUES ('x')")

    assert "DELETE FROM" in finding(shop.app, "table-null-ids")["fix"]
    shop.__exit__()


def test_collation_that_takes_two_ids_for_one(mariadb_shop: Shop) -> None:
    make_by_hand(mariadb_shop)
    found = finding(mariadb_shop.app, "table-collation")

    assert (found["level"], found["fix"]) == ("error", "flask sangho upgrade")


def test_table_without_transactions(mariadb_shop: Shop) -> None:
    upgrade(mariadb_shop)
    execute(mariadb_shop, f"ALTER TABLE {TABLE} ENGINE=MyISAM")
    found = finding(mariadb_shop.app, "table-engine")

    assert "MyISAM" in found["message"]
    assert (found["level"], found["fix"]) == ("error", "flask sangho upgrade")

    upgrade(mariadb_shop)

    assert check(mariadb_shop.app) == []


# ---------------------------------------------------------------- the database


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://nobody:geheim@127.0.0.1:9/nothing",
        "mariadb+pymysql://nobody:geheim@127.0.0.1:9/nothing",
        "sqlite:////nowhere/at/all.sqlite3",
    ],
)
def test_unreachable_database(url: str) -> None:
    shop = make_shop(url)
    result = run_check(shop.app)
    shop.__exit__()

    assert codes(shop.app) == ["database-unreachable"]
    assert result.exit_code == 1
    assert ("127.0.0.1:9/nothing" in result.output) == ("127.0.0.1" in url)
    assert "geheim" not in result.output


@pytest.mark.parametrize("second", [False, True])
def test_database_that_the_app_does_not_have(sqlite_url: str, second: bool) -> None:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=sqlite_url, SANGHO_WEBHOOK_SECRET=GOOD_SECRET)
    webhooks = SanghoWebhooks(SQLAlchemy())
    webhooks.on("webhook.test")(lambda event: None)

    if second:
        SQLAlchemy().init_app(app)

    app.register_blueprint(webhooks.blueprint)
    found = finding(app, "db-not-registered")

    assert found["level"] == "error"
    assert found["fix"] == (
        "Pass the same one: SanghoWebhooks(db)." if second else "Call db.init_app(app)."
    )


def test_bind_that_is_not_configured(sqlite_url: str) -> None:
    db = SQLAlchemy()

    class ElsewhereEvent(ProcessedWebhookEventMixin, db.Model):  # type: ignore[name-defined, misc]
        __bind_key__ = "elsewhere"

    webhooks = SanghoWebhooks(db, model=ElsewhereEvent)
    webhooks.on("webhook.test")(lambda event: None)
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=sqlite_url, SANGHO_WEBHOOK_SECRET=GOOD_SECRET)
    db.init_app(app)
    app.register_blueprint(webhooks.blueprint)
    found = finding(app, "db-not-registered")

    assert "'elsewhere'" in found["message"]
    assert "SQLALCHEMY_BINDS" in found["fix"]


def test_refused_password(mariadb_database_url: str) -> None:
    url = sa.make_url(mariadb_database_url).set(username="nobody", password="geheim")
    shop = make_shop(url.render_as_string(hide_password=False))
    result = run_check(shop.app)
    shop.__exit__()

    assert "error [database-unreachable]" in result.output
    assert "geheim" not in result.output


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_engine_that_commits_by_itself(request: pytest.FixtureRequest, dialect: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    url = make_database(dialect, request)
    shop = make_shop(url, SQLALCHEMY_ENGINE_OPTIONS=options).__enter__()

    assert codes(shop.app) == ["autocommit"]
    assert shop.deliver(secret=GOOD_SECRET).status_code == 500
    shop.__exit__()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///file:shop?mode=memory&uri=true"])
def test_database_in_memory(url: str) -> None:
    shop = make_shop(url, SQLALCHEMY_ENGINE_OPTIONS={"poolclass": sa.StaticPool}).__enter__()

    assert codes(shop.app) == ["sqlite-memory"]
    shop.__exit__()


@pytest.mark.parametrize("seconds", [-100, 100, -20, 20])
def test_clock_that_differs_from_the_databases(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """It is this machine's that is moved: the database's is that of the server."""
    upgrade(shop)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + seconds)
    found = [f["code"] for f in check(shop.app)]

    if abs(seconds) < 30 or "sqlite" in shop.url:
        assert found == []
    else:
        assert found == ["clock-skew"]
        assert "100 seconds apart" in finding(shop.app, "clock-skew")["message"]


# ----------------------------------------------------------------------- Redis


def redis_app(
    client: redis.Redis | redis.RedisCluster | None = None, *, url: str | None = None
) -> Flask:
    webhooks = SanghoWebhooks(guard=RedisGuard(client, url=url))
    webhooks.on(TYPE)(lambda event: None)
    app = Flask(__name__)
    app.config.update(CONFIG)
    app.register_blueprint(webhooks.blueprint)
    return app


@contextlib.contextmanager
def app_on(**config: str) -> c.Iterator[Flask]:
    """An app on a Valkey of the test's own."""
    settings = {name.replace("_", "-"): value for name, value in config.items()}

    with valkey_server(**{"appendonly": "yes", "save": "", **settings}) as server:
        yield redis_app(url=f"{server.connection_url}/0")


def test_redis_that_is_right() -> None:
    with app_on(maxmemory="100mb", maxmemory_policy="noeviction") as app:
        assert check(app) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_redis_that_drops_keys(policy: str) -> None:
    with app_on(maxmemory="100mb", maxmemory_policy=policy) as app:
        found = finding(app, "redis-eviction")

    assert found["level"] == "error"
    assert policy in found["message"]


def test_policy_without_a_limit_does_no_harm() -> None:
    with app_on(maxmemory="0", maxmemory_policy="allkeys-lru") as app:
        assert check(app) == []


def test_redis_that_keeps_nothing_on_disk() -> None:
    with app_on(appendonly="no") as app:
        found = finding(app, "redis-persistence")

    assert (found["level"], found["fix"]) == (
        "warning",
        "redis-cli config set appendonly yes, and the same in redis.conf",
    )


def test_redis_with_snapshots_only() -> None:
    with app_on(appendonly="no", save="3600 1") as app:
        assert [(f["code"], f["level"]) for f in check(app)] == [("redis-snapshots", "advice")]


def test_redis_that_does_not_show_its_configuration() -> None:
    with valkey_server(appendonly="no", save="3600 1") as server:
        admin = redis.Redis.from_url(server.connection_url)
        admin.acl_setuser("shop", enabled=True, nopass=True, keys=["*"], categories=["+@all"])
        admin.execute_command("ACL", "SETUSER", "shop", "-config")  # type: ignore[no-untyped-call]
        admin.close()
        url = f"redis://shop:geheim@{server.connection_url.partition('://')[2]}/0"
        app = redis_app(url=url)

        assert codes(app) == ["redis-persistence-unknown"]
        assert "geheim" not in run_check(app).output


def test_each_node_of_a_cluster_is_checked() -> None:
    def config(**more: str) -> dict[str, str]:
        return {
            **{"cluster-enabled": "yes", "cluster-port": str(free_port())},
            **{"appendonly": "yes", **more},
        }

    first, second = config(), config(**{"maxmemory": "99mb", "maxmemory-policy": "allkeys-lru"})

    with valkey_server(**first) as one, valkey_server(**second) as two:
        nodes: list[t.Any] = [redis.Redis(host="127.0.0.1", port=s.port) for s in (one, two)]
        nodes[0].execute_command("CLUSTER ADDSLOTSRANGE 0 9999")
        nodes[1].execute_command("CLUSTER ADDSLOTSRANGE 10000 16383")
        nodes[0].execute_command(f"CLUSTER MEET 127.0.0.1 {two.port} {second['cluster-port']}")

        for node in nodes:
            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                time.sleep(0.05)

            node.close()

        client = redis.RedisCluster(host="127.0.0.1", port=one.port, socket_timeout=1)
        found = check(redis_app(client))
        client.close()

    assert [f["code"] for f in found] == ["redis-eviction"]


def test_replica() -> None:
    with valkey_server() as primary:
        host, _, port = primary.connection_url.partition("://")[2].partition(":")

        with app_on(replicaof=f"{host} {port}") as app:
            assert finding(app, "redis-replica")["level"] == "error"


def test_unreachable_redis() -> None:
    app = redis_app(url="redis://:geheim@127.0.0.1:9/0")
    result = run_check(app)

    assert codes(app) == ["redis-unreachable"]
    assert result.exit_code == 1
    assert "correct app.config['SANGHO_WEBHOOK_REDIS_URL']" in result.output
    assert "geheim" not in result.output


def test_clock_that_differs_from_that_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    with app_on() as app:
        assert check(app) == []

        monkeypatch.setattr(time, "time", lambda now=time.time: now() - 50)

        assert "Redis are 50 seconds apart" in finding(app, "clock-skew")["message"]


def test_retention_of_the_guard_itself() -> None:
    with app_on() as app:
        url = app.extensions["sangho_webhooks"]["sangho_webhooks"].guard.url

        webhooks = SanghoWebhooks(guard=RedisGuard(url=url, retention=50 * 3600))
        webhooks.on(TYPE)(lambda event: None)
        other = Flask(__name__)
        other.config.update(CONFIG)
        other.register_blueprint(webhooks.blueprint)

        assert codes(other) == ["retention-short"]
