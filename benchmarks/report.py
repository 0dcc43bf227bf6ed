"""The table: on the terminal, and as Markdown."""

from __future__ import annotations

import collections.abc as c
import importlib.metadata
import os
import platform
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


def line(result: Result, judge: bool) -> str:
    """A result for the terminal.

    :param judge: whether to say if the goal is met.
    """
    verdict = f": {'met' if result.is_met else 'NOT MET'}" if judge else ""
    floor = f"  floor {figure(result, result.floor)}" if result.floor else ""
    return (
        f"{result.work:<60} {figure(result, result.ours):>10}"
        f"  {result.rival}: {figure(result, result.theirs)}"
        f"  {ratio(result)} ({spread(result)})  goal {bound(result.goal)}{verdict}{floor}"
    )


INTRODUCTION = """\
# Measured side by side

By `tox run -e bench`, in {seconds:.0f} s, on {machine}.

Both sides of a row are run in turn, and compared round by round: the ratio is the median of the
rounds' ratios, and the spread runs from the least to the greatest. For throughput, a ratio above 1
means that we are faster; for all else, one below 1 that we are faster or smaller. The floor is what
the hardware, the database or the hash function alone costs. Figures change with the machine and
with what else it does; ratios do so less.

A request inside the process is a call of the WSGI app, with a signed body of 300 bytes and without
a socket; both apps have the same handler and Flask-SQLAlchemy's default options.

"""

HEADER = """\
| work | beside | ours | theirs | ratio | spread | rounds | goal | | floor |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page(results: c.Iterable[Result], seconds: float) -> str:
    """RESULTS.md."""
    introduction = INTRODUCTION.format(seconds=seconds, machine=machine())
    plot = "\n![Time over the size of the body and of the table](results.svg)\n"
    return introduction + table(results) + plot


def machine() -> str:
    """What the figures depend on."""
    names = ("Flask", "Flask-SQLAlchemy", "SQLAlchemy", "psycopg", "redis")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return (
        f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()}),"
        f" Python {platform.python_version()}, {versions}"
    )


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
            str(len(result.ours)),
            bound(result.goal),
            "met" if result.is_met else "**not met**",
            floor,
        )
        rows.append(f"| {' | '.join(cells)} |\n")

    return HEADER + "".join(rows)
