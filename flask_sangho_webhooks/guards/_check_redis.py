"""What may be wrong with a Redis that remembers events. Reads only."""

from __future__ import annotations

import collections.abc as c
import time
import typing as t

from ..errors import GuardUnavailable
from ..findings import Finding
from ._check_sql import check_skew

if t.TYPE_CHECKING:
    from .redis import RedisGuard

Info = dict[str, t.Any]


def check_redis(guard: RedisGuard, prefix: str) -> c.Iterator[Finding]:
    """:param prefix: of the endpoint's keys in the configuration."""
    before = time.time()

    try:
        seconds, microseconds = guard.ask(lambda: guard.client.time())
        after = time.time()
        info = guard.ask(lambda: guard.client.info())
    except GuardUnavailable as error:
        yield Finding(
            "redis-unreachable",
            "error",
            f"{error} Deliveries are answered 503 meanwhile.",
            f"Start it, or correct app.config[{prefix + 'REDIS_URL'!r}].",
        )
        return

    yield from check_skew("Redis", before, seconds + microseconds / 1e6, after)
    servers = [info] if "redis_version" in info else list(info.values())  # of a cluster

    for server in servers:
        yield from _check_role(server)
        yield from _check_eviction(server)
        yield from _check_persistence(server, guard)


def _check_role(info: Info) -> c.Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(
            "redis-replica",
            "error",
            "This Redis is a replica, which takes no writes: every delivery is answered 503.",
            "Use the address of the primary, or a client of Sentinel: RedisGuard(client).",
        )


def _check_eviction(info: Info) -> c.Iterator[Finding]:
    limit, policy = info.get("maxmemory", 0), info.get("maxmemory_policy", "noeviction")

    if limit and policy != "noeviction":
        yield Finding(
            "redis-eviction",
            "error",
            f"Redis drops keys when its memory is full (maxmemory-policy {policy}): events are"
            " forgotten, and run again.",
            "redis-cli config set maxmemory-policy noeviction, and the same in redis.conf; or a"
            " server of its own",
        )


def _check_persistence(info: Info, guard: RedisGuard) -> c.Iterator[Finding]:
    if info.get("aof_enabled"):
        return

    fix = "redis-cli config set appendonly yes, and the same in redis.conf"

    try:
        snapshots = guard.ask(lambda: guard.client.config_get("save"))
    except GuardUnavailable:
        yield Finding(
            "redis-persistence-unknown",
            "advice",
            "Redis has no append-only file, and does not tell whether it makes snapshots.",
            "Look for its persistence in the console of whoever runs it: a Redis without forgets"
            " all events when it restarts.",
        )
        return

    if not any(snapshots.values()):
        yield Finding(
            "redis-persistence",
            "warning",
            "Redis keeps nothing on disk: when it restarts, it has forgotten all events, and those"
            " that are redelivered run again.",
            fix,
        )
    else:
        yield Finding(
            "redis-snapshots",
            "advice",
            "Redis saves snapshots only: a crash forgets the events since the last one.",
            fix,
        )
