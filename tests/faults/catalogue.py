"""Every scenario, in its full and in its short form."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import pathlib
import typing as t

from .databases import Database, MariaDB, PostgreSQL, SQLite
from .load import Load
from .plan import Behaviour, Profile, TRANSACTIONAL
from .scenario import Faults, Scenario
from .scenarios import (
    CeleryScenario,
    ChecksThenRecords,
    RabbitMQScenario,
    RecordsThenHandles,
    RedisScenario,
)

SCENARIOS: t.Final[dict[str, tuple[type[Scenario], str, type[Database]]]] = {
    "postgresql": (Scenario, "SQLGuard, PostgreSQL", PostgreSQL),
    "mariadb": (Scenario, "SQLGuard, MariaDB", MariaDB),
    "sqlite": (Scenario, "SQLGuard, SQLite", SQLite),
    "redis": (RedisScenario, "RedisGuard, Valkey", PostgreSQL),
    "celery": (CeleryScenario, "SQLGuard in Celery, Valkey", PostgreSQL),
    "rabbitmq": (RabbitMQScenario, "SQLGuard in Celery, RabbitMQ", PostgreSQL),
    "checks": (ChecksThenRecords, "naive: check, handle, record", PostgreSQL),
    "records": (RecordsThenHandles, "naive: record, handle", PostgreSQL),
}
NAMES = (*SCENARIOS, "load")
SHORT = ("postgresql", "sqlite", "redis", "checks", "records")
"""What the short form runs: what needs no server of the machine's, and is soon over."""

ENOUGH = (100, 20, 3)

# What needs a receiver that knows more than exceptions.
_NOT_NAIVE: t.Final[tuple[Behaviour, ...]] = ("discards", "retries_later", "commits_and_raises")


def _size(name: str, short: bool) -> tuple[Profile, Faults]:
    if name in ("postgresql", "mariadb", "sqlite"):
        if short:
            profile = Profile(300, dies=20, sleeps=3)
            faults = Faults(kills=5, reloads=1, connections=4, restarts=1, losses=3, delays=2)
        else:
            profile = Profile(5000, dies=90, sleeps=25, deliveries=(3, 3))
            faults = Faults(kills=30, connections=24, restarts=3, losses=20, delays=6)
            faults = dataclasses.replace(faults, at_least=ENOUGH)

        if name == "sqlite":
            # Who sleeps holds the one lock, and there is no server.
            profile = dataclasses.replace(profile, sleeps=3)
            faults = dataclasses.replace(faults, at_least=(faults.at_least[0], 0, 0))

        return profile, faults

    count = 150 if short else 1300 if name == "redis" else 1000
    profile = Profile(count, dies=count // 10, sleeps=count // 75, deliveries=(3, 3))
    faults = Faults(kills=count // 50, reloads=1, restarts=1 if short else 3)
    least = (0, 0, 0) if short else ENOUGH

    if name in ("checks", "records"):
        profile = dataclasses.replace(profile, without=_NOT_NAIVE)
        faults = dataclasses.replace(faults, connections=4, losses=4, delays=2)
    elif name == "redis":
        profile = dataclasses.replace(profile, without=TRANSACTIONAL)
        faults = dataclasses.replace(faults, connections=4, losses=10, delays=2, at_least=least)
    else:
        # Also events that come only once: another message must not hide that one was lost.
        count //= 2
        profile = Profile(count, dies=count // 6, sleeps=count // 75, deliveries=(1, 4))
        # There are few connections to a broker, and all of them are closed each time.
        least = (least[0], least[1] // 2, least[2])
        faults = dataclasses.replace(faults, connections=2 if short else 8, at_least=least)

    return profile, faults


def make_scenarios(
    only: list[str] | None, short: bool, seed: int, folder: pathlib.Path
) -> c.Iterator[Scenario | Load]:
    """The scenarios of these names, or all."""
    for name in only or (SHORT if short else NAMES):
        if name == "load":
            yield Load("64 senders at once", 15 if short else 60, seed=seed, folder=folder / name)
        else:
            kind, title, database = SCENARIOS[name]
            profile, faults = _size(name, short)
            yield kind(title, database, profile, faults, seed=seed, folder=folder / name)
