"""Records of events that were processed some time ago, by the clock of the database."""

from __future__ import annotations

import sqlalchemy as sa

from .support import Shop

TABLE = "processed_webhook_events"

_AGO = {
    "sqlite": "datetime('now', -(:seconds) || ' seconds')",
    "postgresql": "timezone('utc', now()) - make_interval(secs => :seconds)",
    "mariadb": "now() - INTERVAL :seconds SECOND",
}
_NUMBERS = {
    "sqlite": "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < :count)"
    " SELECT i FROM s",
    "postgresql": "SELECT i FROM generate_series(1, :count) i",
    "mariadb": "SELECT seq AS i FROM seq_1_to_2000000 WHERE seq <= :count",
}


def insert(shop: Shop, ages: dict[str, float]) -> None:
    """Insert records by their ids and ages in hours."""
    for event_id, hours in ages.items():
        fill(shop, event_id, 1, hours)


def fill(shop: Shop, prefix: str, count: int, hours: float, *, apart: float = 0) -> None:
    """Insert many records; one has ``prefix`` for its id, several have numbers after it.

    :param apart: seconds between a record and the next, younger one.
    """
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)
    ago = _AGO[engine.dialect.name].replace(":seconds", "(:seconds - i * :apart)")
    concat = "CONCAT(:prefix, i)" if engine.dialect.name == "mariadb" else ":prefix || i"
    statement = sa.text(
        f"INSERT INTO {TABLE} (event_id, event_type, processed_at)"
        f" SELECT {':prefix' if count == 1 else concat}, 'payment_intent.succeeded', {ago}"
        f" FROM ({_NUMBERS[engine.dialect.name]}) numbers"
    )

    with engine.begin() as connection:
        connection.execute(
            statement,
            {"prefix": prefix, "count": count, "seconds": hours * 3600, "apart": apart},
        )


def count(shop: Shop, prefix: str = "") -> int:
    """How many records there are whose ids begin with ``prefix``, seen from another connection."""
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)
    statement = sa.text(f"SELECT count(*) FROM {TABLE} WHERE event_id LIKE :pattern")

    with engine.connect() as connection:
        return int(connection.execute(statement, {"pattern": f"{prefix}%"}).scalar_one())
