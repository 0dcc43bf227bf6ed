"""The demo: every promise, kept before your eyes. Run it with ``python -m example_app``."""

from __future__ import annotations

import collections
import collections.abc as c
import importlib.util
import itertools
import os
import pathlib
import signal
import sys
import textwrap
import types
import typing as t

import click

if t.TYPE_CHECKING:
    from .player import Line

TIME_LIMIT = 60
"""Seconds, without those that gunicorn takes to stop."""

_WIDTHS = (44, 26, 10, 11)

_interruptions: list[int] = []
"""Python may be in a place, such as a finalizer, from which the exit does not get through."""

_Handler = c.Callable[[int, types.FrameType | None], t.Any] | signal.Handlers


def main() -> int:
    """Serve the shop, play Sangho, stop the shop.

    :return: the exit status, 0 if everything was as promised.
    """
    missing = [name for name in ("gunicorn", "sangho") if importlib.util.find_spec(name) is None]

    if missing:
        requirements = os.path.relpath(pathlib.Path(__file__).with_name("requirements.txt"))
        click.echo(
            f"The demo needs {' and '.join(missing)}. Install what it needs with\n"
            f"    python -m pip install -r {requirements}",
            err=True,
        )
        return 1

    # The demo looks into the table of processed events.
    for name in ("EXAMPLE_GUARD", "EXAMPLE_QUEUE"):
        os.environ.pop(name, None)

    from .player import Player
    from .server import DemoError, new_server, THREADS, WORKERS

    _on_interruption(_leave)
    signal.alarm(TIME_LIMIT)

    try:
        with new_server() as server:
            for arguments in (("sangho", "upgrade"), ("open-shop",)):
                click.echo(f"$ flask {' '.join(arguments)}\n{server.command(*arguments)}", nl=False)

            click.echo(
                f"$ gunicorn --workers {WORKERS} --threads {THREADS} 'example_app:create_app()'"
            )

            with server.serve() as receiver:
                click.echo(f"The shop answers at http://127.0.0.1:{receiver.port}/\n")
                status = report(Player(receiver).play())

                if status != 0:
                    click.echo(f"\nThe server's log ends with\n\n{server.log_tail()}", err=True)

                return status
    except DemoError as error:
        click.echo(str(error), err=True)
        return 1


def report(lines: c.Iterable[str | Line]) -> int:
    """Print headings and lines as they come.

    :return: the exit status, 0 if there were lines and all were as promised.
    """
    _print_row("sent", "answered", "in ledger", "as promised")
    total = kept = 0

    for line in lines:
        if _interruptions:
            sys.exit(128 + _interruptions[0])

        if isinstance(line, str):
            click.echo(f"\n{line}")
            continue

        total += 1
        kept += line.kept
        _print_row(line.sent, _count(line.answers), line.ledger, "yes" if line.kept else "NO")

        if not line.kept:
            indent = " " * 6
            promise = f"promised: {line.promise}"
            click.echo(textwrap.fill(promise, 90, initial_indent=indent, subsequent_indent=indent))

    click.echo(f"\n{kept} of {total} lines are as promised.")
    return 0 if 0 < kept == total else 1


def _count(answers: c.Sequence[str]) -> str:
    if len(answers) == 1:
        return answers[0]

    counted = collections.Counter(answers).most_common()
    return "\n".join(f"{number:2} x {answer}" for answer, number in reversed(counted))


def _print_row(*cells: str) -> None:
    """The cells side by side, each wrapped in its column."""
    columns = [
        [part for line in cell.splitlines() for part in textwrap.wrap(line, width)]
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]

    for parts in itertools.zip_longest(*columns, fillvalue=""):
        click.echo(f"  {'  '.join(map(str.ljust, parts, _WIDTHS))}".rstrip())


def _on_interruption(handler: _Handler) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, handler)


def _leave(number: int, frame: types.FrameType | None) -> t.NoReturn:
    """Leave by way of every ``finally``, without being interrupted again."""
    _on_interruption(signal.SIG_IGN)
    _interruptions.append(number)

    if number == signal.SIGALRM:
        sys.exit(f"The demo was stopped: it took longer than {TIME_LIMIT} seconds.")

    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
