"""The table: on the terminal, and as Markdown."""

from __future__ import annotations

import collections.abc as c
import statistics

from .measure import Goal, Result, Samples


def figure(result: Result, samples: Samples) -> str:
    """A median with its unit."""
    if not samples:
        return "–"

    value = statistics.median(samples)

    if result.unit == "memory":
        return f"{value / 1024 / 1024:.1f} MiB"

    if result.unit == "throughput":
        return f"{1 / value:,.0f}/s"

    return duration(value)


def duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"

    return f"{seconds * 1e6:.3g} µs"


def bound(goal: Goal) -> str:
    sign = "≥" if goal.at_least else "≤"
    return f"{sign} {duration(goal.bound)}" if goal.absolute else f"{sign} {goal.bound:g}×"


def ratio(result: Result) -> str:
    return f"{statistics.median(result.ratios):.2f}×" if result.theirs else "–"


def spread(result: Result) -> str:
    """The least and the greatest of what the goal is about."""
    if result.goal.absolute:
        return f"{duration(min(result.ours))} – {duration(max(result.ours))}"

    return f"{min(result.ratios):.2f} – {max(result.ratios):.2f}"


def line(result: Result) -> str:
    """A result for the terminal."""
    verdict = "met" if result.is_met else "NOT MET"
    floor = f"  floor {figure(result, result.floor)}" if result.floor else ""
    return (
        f"{result.work:<60} {figure(result, result.ours):>10}"
        f"  {result.rival}: {figure(result, result.theirs)}"
        f"  {ratio(result)} ({spread(result)})  goal {bound(result.goal)}: {verdict}{floor}"
    )


HEADER = """\
| work | beside | ours | theirs | ratio | spread | goal | | floor |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(results: c.Iterable[Result]) -> str:
    """The results as a table of Markdown."""
    rows = []

    for result in results:
        floor = f"{figure(result, result.floor)}: {result.floor_is}" if result.floor_is else "–"
        cells = (
            result.work,
            result.rival,
            figure(result, result.ours),
            figure(result, result.theirs),
            ratio(result),
            spread(result),
            bound(result.goal),
            "met" if result.is_met else "**not met**",
            floor,
        )
        rows.append(f"| {' | '.join(cells)} |\n")

    return HEADER + "".join(rows)
