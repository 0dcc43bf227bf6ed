"""Each way of claiming an event gives the same answers."""

from __future__ import annotations

import collections.abc as c

import pytest
import sqlalchemy as sa
import sqlalchemy.exc as sa_exc

from flask_sangho_webhooks import ConfigError, Event
from flask_sangho_webhooks.guards import _claim
from flask_sangho_webhooks.guards._claim import Claim

from .support import Shop, TYPE

Attempt = c.Callable[[sa.Connection, Event], Claim]
EVENT = Event(id="evt_1", type=TYPE)


@pytest.fixture(
    params=[
        "sqlite",
        "postgresql",
        "mariadb",
        "mariadb as mysql",
        "postgresql as other",
        "mariadb as other",
    ]
)
def case(request: pytest.FixtureRequest) -> tuple[Shop, Attempt]:
    """A shop on a server, and the way to claim on it. MySQL's own way runs on MariaDB, and the way
    for databases that we do not know runs on two.
    """
    server, _, way = request.param.partition(" as ")
    shop: Shop = request.getfixturevalue(f"{server}_shop")
    assert shop.webhooks.model is not None
    table: sa.Table = shop.webhooks.model.__table__

    def attempt(connection: sa.Connection, event: Event) -> Claim:
        if way == "mysql":
            return _claim._mysql(connection, table, event, 1)

        if way == "other":
            return _claim._generic(connection, table, event)

        return _claim.claim(connection, table, event, 1)

    return shop, attempt


def test_claim_then_duplicate(case: tuple[Shop, Attempt]) -> None:
    shop, attempt = case

    with shop._observer.begin() as connection:
        assert attempt(connection, EVENT) is Claim.OURS

    with shop._observer.begin() as connection:
        assert attempt(connection, EVENT) is Claim.DUPLICATE

    assert shop.recorded() == ["evt_1"]


def test_rolled_back_claim_is_free_again(case: tuple[Shop, Attempt]) -> None:
    shop, attempt = case

    with shop._observer.connect() as connection:
        assert attempt(connection, EVENT) is Claim.OURS

    with shop._observer.begin() as connection:
        assert attempt(connection, EVENT) is Claim.OURS


def test_connection_goes_on_after_a_duplicate(case: tuple[Shop, Attempt]) -> None:
    shop, attempt = case

    with shop._observer.begin() as connection:
        attempt(connection, EVENT)

    with shop._observer.begin() as connection:
        attempt(connection, EVENT)
        assert attempt(connection, Event(id="evt_2", type=TYPE)) is Claim.OURS

    assert shop.recorded() == ["evt_1", "evt_2"]


@pytest.mark.parametrize("way", ["mariadb", "mysql"])
def test_in_progress(way: str, mariadb_shop: Shop) -> None:
    shop = mariadb_shop
    assert shop.webhooks.model is not None
    table: sa.Table = shop.webhooks.model.__table__

    with shop._observer.connect() as first, shop._observer.connect() as second:
        _claim.claim(first, table, EVENT, 1)
        second.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 7")

        if way == "mysql":
            assert _claim._mysql(second, table, EVENT, 1) is Claim.IN_PROGRESS
        else:
            assert _claim.claim(second, table, EVENT, 1) is Claim.IN_PROGRESS

        left = second.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar()
        assert left == 7


def test_unrelated_constraint_is_raised(case: tuple[Shop, Attempt]) -> None:
    shop, attempt = case
    assert shop.webhooks.model is not None
    table: sa.Table = shop.webhooks.model.__table__

    with shop._observer.begin() as connection:
        sa.Index("one_type", table.c.event_type, unique=True).create(connection)
        attempt(connection, EVENT)

    with shop._observer.connect() as connection, pytest.raises(sa_exc.IntegrityError):
        attempt(connection, Event(id="evt_2", type=TYPE))


def test_ignoring_collation_is_explained(mariadb_shop: Shop) -> None:
    """The guide's table, made by hand: 'evt_A' must not pass for a duplicate of 'evt_a'."""
    shop = mariadb_shop
    assert shop.webhooks.model is not None
    table: sa.Table = shop.webhooks.model.__table__

    with shop._observer.begin() as connection:
        connection.exec_driver_sql(
            "ALTER TABLE processed_webhook_events MODIFY event_id VARCHAR(50)"
            " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
        )
        _claim.claim(connection, table, Event(id="evt_a", type=TYPE), 1)

        with pytest.raises(ConfigError, match="flask sangho upgrade"):
            _claim.claim(connection, table, Event(id="evt_A", type=TYPE), 1)


@pytest.mark.parametrize("drivername", ["mysql+pymysql", "mariadb+pymysql"])
def test_either_name_of_the_dialect(drivername: str, mariadb_database_url: str) -> None:
    url = sa.make_url(mariadb_database_url).set(drivername=drivername)

    with Shop(url.render_as_string(hide_password=False)) as shop:
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
        assert shop.deliver().json == {"received": True}
        assert shop.deliver().json == {"received": True, "duplicate": True}
