"""What may be wrong with a Redis that remembers events. Reads only."""

from __future__ import annotations

import collections.abc as c
import time
import typing as t

from ..errors import GuardUnavailable
from ..findings import Finding
from ._clock import check_skew

if t.TYPE_CHECKING:
    from .redis import RedisGuard

Info = dict[str, t.Any]
Node = dict[str, t.Any]
"""What redis-py takes to ask one server of a cluster."""


def check_redis(guard: RedisGuard, prefix: str) -> list[Finding]:
    """:param prefix: of the endpoint's keys in the configuration."""
    get_primaries = getattr(guard.client, "get_primaries", None)  # of a cluster
    nodes = [{}] if get_primaries is None else [{"target_nodes": n} for n in get_primaries()]

    try:
        found = [finding for node in nodes for finding in _check_node(guard, node)]
    except GuardUnavailable as error:
        return [
            Finding(
                "redis-unreachable",
                "error",
                f"{error} Deliveries are answered 503 meanwhile.",
                f"Start it, or correct app.config[{prefix + 'REDIS_URL'!r}].",
            )
        ]

    return list(dict.fromkeys(found))


def _check_node(guard: RedisGuard, node: Node) -> c.Iterator[Finding]:
    before = time.time()
    seconds, microseconds = guard.ask(lambda: guard.client.time(**node))
    yield from check_skew("Redis", before, seconds + microseconds / 1e6, time.time())

    info = guard.ask(lambda: guard.client.info(**node))
    yield from _check_role(info)
    yield from _check_eviction(info)
    yield from _check_persistence(info, guard, node)


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


def _check_persistence(info: Info, guard: RedisGuard, node: Node) -> c.Iterator[Finding]:
    if info.get("aof_enabled"):
        return

    fix = "redis-cli config set appendonly yes, and the same in redis.conf"

    try:
        snapshots = guard.ask(lambda: guard.client.config_get("save", **node))
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
