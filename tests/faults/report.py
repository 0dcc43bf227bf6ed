"""The table, on the terminal and in Markdown."""

from __future__ import annotations

import os
import pathlib
import platform

from .scenario import Result

RESULTS = pathlib.Path(__file__).parent / "RESULTS.md"
MAX_SHOWN = 10

LEGEND = """\
Deliveries are the attempts of the senders, each with a fresh signature by the official SDK: with
clocks that are up to 200 s wrong, while the secret is rotated, out of order, with duplicates beside
and after each other, some broken off, some forged; each is repeated until it is answered 2xx.
Handlers raise, ask for a redelivery, discard, sleep past the sender's timeout, commit, roll back
and remove the session. SIGKILLs end gunicorn's and Celery's workers at random, on arrival, before
and after the claim, in the handler, before and after COMMIT and before the answer. Connections are
killed from the server's side, and the server that holds the guard's records, or the queue, is
stopped and started, every other time without notice. A proxy loses COMMITs, or the replies to them,
and holds everything up. Servers reload, and are replaced while they serve.

Lost: answered 2xx, and without effect or record. Doubled: an effect more than once. Half-done: one
of the two writes of a run. The naive receivers are there to be found out.
"""

HEADER = (
    "receiver and store",
    "events",
    "deliveries",
    "SIGKILLs",
    "connections killed",
    "restarts",
    "lost",
    "doubled",
    "half-done",
    "seconds",
)


def _row(result: Result) -> tuple[str, ...]:
    if result.skipped:
        return (f"{result.name}: skipped", *["-"] * (len(HEADER) - 1))

    verdict = result.verdict
    doubled = str(verdict.count("doubled"))

    if verdict.explained:
        doubled += f" (+{len(verdict.explained)} explained)"

    return (
        result.name,
        f"{result.events:,}",
        f"{result.deliveries:,}",
        str(result.kills),
        str(result.connections),
        str(result.restarts),
        str(verdict.count("lost")),
        doubled,
        str(verdict.count("half_done")),
        f"{result.seconds:.0f}",
    )


def _markdown(results: list[Result]) -> str:
    rows = [HEADER, *map(_row, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    ruler = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([lines[0], ruler, *lines[1:]])


def _notes(results: list[Result]) -> str:
    return "\n".join(f"- {result.name}: {note}" for result in results for note in result.notes)


def _explained(results: list[Result]) -> str:
    """Every double that a guard does not promise to prevent."""
    lines = [f"- {f.event_id}: {f.text}" for r in results for f in r.verdict.explained]

    if not lines:
        return ""

    return (
        "\n## Doubles that are explained\n\nIn brackets, where the worker was when it was killed,"
        " in this thread or another.\n\n" + "\n".join(lines) + "\n"
    )


def print_findings(result: Result) -> None:
    """What is wrong with one scenario, and what is explained."""
    verdict = result.verdict

    shown = 3 if result.expects else MAX_SHOWN

    for finding in verdict.findings[:shown]:
        print(f"  {finding.kind} {finding.event_id}: {finding.text}")

    if len(verdict.findings) > shown:
        print(f"  … and {len(verdict.findings) - shown} more")

    for finding in verdict.explained:
        print(f"  explained: {finding.kind} {finding.event_id}: {finding.text}")

    for problem in result.problems:
        print(f"  {problem}")

    for note in result.notes:
        print(f"  {note}")

    if result.skipped:
        print(f"  skipped: {result.skipped}")

    print(f"  {'FAILED' if result.failed else 'ok'}, {result.seconds:.0f} s", flush=True)


def print_table(results: list[Result], command: str, seconds: float) -> None:
    print(f"\n{_markdown(results)}\n\n{seconds:.0f} s: {command}", flush=True)


def write_results(results: list[Result], command: str, seconds: float) -> None:
    RESULTS.write_text(
        "# Under faults\n\n"
        f"Written by `{command}`, in {seconds:.0f} seconds on"
        f" {os.cpu_count()} cores (load average {os.getloadavg()[2]:.0f}), Python"
        f" {platform.python_version()}.\n\n"
        f"{_markdown(results)}\n\n{_notes(results)}\n\n{LEGEND}{_explained(results)}"
    )
