"""Every scenario, in its full and in its short form."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import pathlib
import typing as t

from .databases import Database, MariaDB, PostgreSQL, SQLite, Unavailable
from .plan import Behaviour, Profile
from .scenario import Faults, Result, Scenario


class SQLScenario(Scenario):
    """The guard in the database."""


class NaiveScenario(Scenario):
    """A receiver that must be found out."""

    def run(self) -> Result:
        result = super().run()
        result.expects_findings = True
        return result


class ChecksThenRecords(NaiveScenario):
    receiver = "checks_then_records"


class RecordsThenHandles(NaiveScenario):
    receiver = "records_then_handles"


SCENARIOS: dict[str, tuple[type[Scenario], str, type[Database]]] = {
    "postgresql": (SQLScenario, "SQLGuard, PostgreSQL", PostgreSQL),
    "mariadb": (SQLScenario, "SQLGuard, MariaDB", MariaDB),
    "sqlite": (SQLScenario, "SQLGuard, SQLite", SQLite),
    "checks": (ChecksThenRecords, "naive: check, handle, record", PostgreSQL),
    "records": (RecordsThenHandles, "naive: record, handle", PostgreSQL),
}
NAMES = tuple(SCENARIOS)

# What needs a receiver that knows more than exceptions.
_NOT_NAIVE: tuple[Behaviour, ...] = ("discards", "retries_later", "commits_and_raises")


def _size(name: str, short: bool) -> tuple[Profile, Faults]:
    if name in ("checks", "records"):
        count = 200 if short else 1000
        return (
            Profile(count, dies=count // 10, sleeps=count // 50, without=_NOT_NAIVE),
            Faults(kills=count // 50, connections=10, restarts=1, losses=5, delays=2),
        )

    if short:
        profile = Profile(300, dies=20, sleeps=3)
        faults = Faults(kills=5, reloads=1, connections=5, restarts=1, losses=3, delays=2)
    else:
        profile = Profile(5000, dies=90, sleeps=25, deliveries=(3, 4))
        faults = Faults(kills=30, connections=24, restarts=3, losses=20, delays=6)

    if name == "sqlite":
        # Who sleeps holds the one lock.
        profile = dataclasses.replace(profile, sleeps=3)

    return profile, faults


class Skipped:
    """A scenario that cannot run here."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def run(self) -> Result:
        return Result(self.name, skipped=self.reason)


def make_scenarios(
    only: list[str] | None, short: bool, seed: int, folder: pathlib.Path
) -> c.Iterator[Scenario]:
    for name in only or NAMES:
        kind, title, database = SCENARIOS[name]
        profile, faults = _size(name, short)
        yield kind(title, database, profile, faults, seed=seed, folder=folder / name)
