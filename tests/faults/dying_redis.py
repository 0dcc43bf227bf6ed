"""A guard in Redis whose process may die around the claim."""

from __future__ import annotations

import typing as t

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flask_sangho_webhooks import RedisGuard

from .handler import Handler
from .settings import Settings


class DyingRedis(redis.Redis):
    """A client as the guard makes one itself, except for this."""

    handler: Handler

    def set(self, name: t.Any, *args: t.Any, **options: t.Any) -> t.Any:
        event_id = str(name).rpartition(":")[2]
        self.handler.die("claim", event_id)
        done = super().set(name, *args, **options)
        self.handler.die("claimed", event_id)
        return done


def redis_guard(handler: Handler, settings: Settings) -> RedisGuard:
    """A guard on such a client."""
    client: t.Any = DyingRedis.from_url(
        settings.redis_url,
        socket_connect_timeout=0.5,
        socket_timeout=0.5,
        retry=Retry(NoBackoff(), 0),
    )
    client.handler = handler
    return RedisGuard(client, lease=settings.lease)
