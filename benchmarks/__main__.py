"""Measure, print, and write RESULTS.md: ``python -m benchmarks``."""

from __future__ import annotations

import logging
import pathlib
import signal
import sys
import time

import click

from . import plot, report
from .measure import Bench, Result
from .rows import ROWS, UNPROFILED
from .servers import Missing, Servers

FOLDER = pathlib.Path(__file__).parent
SECONDS = 590
"""In which all rows are to be measured. On a slow machine the cleanups take fewer rounds for it."""


@click.command()
@click.option("--smoke", is_flag=True, help="See that every row runs, in little time, on little.")
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="Measure these rows.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option(
    "--profile",
    type=click.Choice([name for name in ROWS if name not in UNPROFILED]),
    help="Show where the time of a row goes.",
)
def main(smoke: bool, only: tuple[str, ...], rounds: int, profile: str | None) -> None:
    """Measure the package beside what one would use without it.

    Both are run in turn in the same process or on the same servers, and compared round by round.
    The servers are those that TEST_POSTGRES_URL, TEST_MARIADB_URL and TEST_REDIS_URL name, or else
    embedded ones; there is no embedded MariaDB.
    """
    # Databases and servers are to be tidied up then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Refusals are part of some rows: they are not for the terminal.
    logging.getLogger("flask_sangho_webhooks").addHandler(logging.NullHandler())
    names = [profile] if profile else only or list(ROWS)
    started = time.monotonic()

    with Servers() as servers:
        bench = Bench(servers, rounds=1 if smoke else rounds, smoke=smoke, profiling=bool(profile))

        if not only:
            bench.ends = started + SECONDS

        results = measure(bench, names)

        for text in bench.profiles:
            click.echo(text)

    seconds = time.monotonic() - started
    met = sum(result.is_met for result in results)
    click.echo(f"{seconds:.0f} s" if smoke else f"{met} of {len(results)} met, {seconds:.0f} s")

    if not (smoke or only or profile):
        (FOLDER / "RESULTS.md").write_text(report.page(results, seconds))
        (FOLDER / "results.svg").write_text(plot.draw(bench.growth))


def measure(bench: Bench, names: list[str] | tuple[str, ...]) -> list[Result]:
    results: list[Result] = []

    for name in names:
        try:
            with bench.servers.row:
                found = ROWS[name](bench)
        except Missing as error:
            click.echo(f"{name}: skipped. {error}")
            continue

        results += found

        for result in found:
            click.echo(report.line(result, judge=not bench.smoke))

    return results


if __name__ == "__main__":
    main()
