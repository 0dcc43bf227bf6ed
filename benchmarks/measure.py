"""Two things, or three, run in turn, and what comes of it."""

from __future__ import annotations

import collections.abc as c
import cProfile
import dataclasses
import gc
import io
import math
import pstats
import statistics
import time
import typing as t

from .servers import Servers

Work = c.Callable[[int], c.Callable[[], object]]
"""Prepares so many units of work, and returns the function that does them on the clock."""

Samples = c.Sequence[float]
"""One figure for each round."""

Growth = dict[str, dict[str, list[tuple[int, float]]]]
"""Points of lines: a size, and the seconds that it takes."""

OURS, THEIRS, FLOOR = "ours", "theirs", "floor"


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound for the ratio, or for the figure itself."""

    bound: float
    at_least: bool = False
    absolute: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What one line of the table says. Figures are seconds for a unit of work, or bytes."""

    work: str
    rival: str
    goal: Goal
    unit: t.Literal["time", "throughput", "memory"] = "time"
    ours: Samples
    theirs: Samples = ()
    floor: Samples = ()
    floor_is: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ours to theirs, round by round; for throughput, a greater one is better."""
        pairs = zip(self.ours, self.theirs, strict=True) if self.theirs else ()

        if self.unit == "throughput":
            return [theirs / ours for ours, theirs in pairs]

        return [ours / theirs for ours, theirs in pairs]

    @property
    def value(self) -> float:
        """What the goal is about."""
        return statistics.median(self.ours if self.goal.absolute else self.ratios)

    @property
    def is_met(self) -> bool:
        return self.goal.is_met(self.value)


@dataclasses.dataclass
class Bench:
    """How to measure, and on what."""

    servers: Servers
    rounds: int
    smoke: bool = False
    profiling: bool = False
    profiles: list[str] = dataclasses.field(default_factory=list)
    ends: float = math.inf
    """The time, by the monotonic clock, before which all rows are to be measured."""
    growth: Growth = dataclasses.field(default_factory=lambda: {"body": {}, "rows": {}})
    """What the plot shows, by what grows and whose line it is."""

    def interleave(
        self,
        sides: c.Mapping[str, Work],
        *,
        units: int,
        seconds: float = 0.6,
        clock: c.Callable[[], float] = time.perf_counter,
    ) -> dict[str, list[float]]:
        """Time the sides in turn, block by block.

        :param sides: by name.
        :param units: of work in one block.
        :param seconds: that a round takes, or longer: every side comes first, and before every
            other, as often.
        :param clock: in seconds.
        :return: seconds for a unit of work, a figure for each round.
        """
        names = list(sides)
        samples: dict[str, list[float]] = {name: [] for name in names}

        for name, work in sides.items():
            work(units)()

            if self.profiling and name != FLOOR:
                self.profile(f"{name}, {units * 20} units of work", work(units * 20))

        for _ in range(self.rounds):
            gc.collect()
            totals = dict.fromkeys(names, 0.0)
            blocks = 0
            ends = time.monotonic() + (0 if self.smoke else seconds)

            while not blocks or time.monotonic() < ends:
                for order in orders(names):
                    for name in order:
                        totals[name] += timed(sides[name](units), clock)

                    blocks += 1

            for name, total in totals.items():
                samples[name].append(total / (units * blocks))

        return samples

    def profile(self, title: str, run: c.Callable[[], object]) -> None:
        """Note which functions take most of the time themselves."""
        profile = cProfile.Profile()
        profile.runcall(run)
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
        self.profiles.append(f"{title}\n{text.getvalue()}")


def orders(names: list[str]) -> c.Iterator[list[str]]:
    """The names in several orders, in which each comes first, and before each other, as often."""
    for start in range(len(names)):
        order = names[start:] + names[:start]
        yield order
        yield order[::-1]


def timed(run: c.Callable[[], object], clock: c.Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    run()
    return clock() - started
