"""The contract of guards, on every store."""

from __future__ import annotations

import pytest

from flask_sangho_webhooks import ProcessedWebhookEventMixin, SanghoWebhooks

from .guard_contract import GuardContract
from .support import prepare_at_once, Shop


class TestSQLGuard(GuardContract):
    """On SQLite, PostgreSQL and MariaDB, by the fixture ``shop`` of conftest."""

    def second_endpoint(self, shop: Shop) -> SanghoWebhooks:
        class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
            __tablename__ = "connect_events"

        return SanghoWebhooks(
            shop.db,
            model=ConnectEvent,
            name="connect",
            path="/connect",
            config_prefix="SANGHO_CONNECT_",
        )


class TestPreparedClaim(TestSQLGuard):
    """On PostgreSQL."""

    @pytest.fixture
    def shop(self, postgresql_shop: Shop) -> Shop:
        prepare_at_once(postgresql_shop)
        return postgresql_shop


class TestRedisGuard(GuardContract):
    """On Valkey and Redis."""

    @pytest.fixture
    def shop(self, redis_shop: Shop) -> Shop:
        return redis_shop
