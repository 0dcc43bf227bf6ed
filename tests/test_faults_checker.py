"""What the checker of ``tests/faults`` finds, and what it lets pass."""

from __future__ import annotations

import pathlib
import time

import pytest

from .faults.causes import Causes
from .faults.checker import check, Verdict
from .faults.journal import Journal, new_journal
from .faults.ledger import Books, JUNK
from .faults.plan import (
    Behaviour,
    Forgery,
    in_order_of_sending,
    make_events,
    PlannedEvent,
    point_of,
    POINTS,
    Profile,
)
from .faults.sender import Attempt


def event(does: Behaviour = "plain", forgery: Forgery | None = None) -> PlannedEvent:
    return PlannedEvent("evt_0", does, 2, forgery)


def attempts(*statuses: int) -> list[Attempt]:
    """One delivery for each status."""
    return [Attempt("evt_0", number, 1, 0, 1, status, "") for number, status in enumerate(statuses)]


def books(ledger: list[str], effect: list[str] | None = None, *, recorded: bool = True) -> Books:
    return Books(
        {"evt_0": ledger} if ledger else {},
        {"evt_0": ledger if effect is None else effect},
        {"evt_0"} if recorded else set(),
    )


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


@pytest.mark.parametrize(
    ("planned", "statuses", "found", "expected"),
    [
        (event(), (200, 200), books(["a"]), []),
        (event(), (200, 202), books(["a"]), []),
        (event("discards"), (200, 200), books([]), []),
        (event(), (200, 200), books([]), ["lost"]),
        (event(), (200, 200), books([], recorded=False), ["lost", "lost"]),
        (event(), (200, 200), books(["a"], recorded=False), ["lost"]),
        (event(), (200, 200), books(["a", "b"]), ["doubled"]),
        (event("discards"), (200, 200), books(["a"]), ["doubled"]),
        (event(), (200, 200), books(["a"], []), ["half_done", "lost"]),
        (event(), (200, 200), books(["a"], ["b"]), ["half_done"]),
        (event(), (200, 200), books([JUNK]), ["half_done"]),
        (event(), (200, 503), books(["a"]), ["unfinished"]),
        (event(), (0, 503), books([], recorded=False), ["unfinished"]),
        (event(forgery="secret"), (401,), books([], recorded=False), []),
        (event(forgery="secret"), (200,), books([], recorded=False), ["unverified"]),
        (event(forgery="secret"), (401,), books(["a"], recorded=False), ["unverified"]),
        (event(forgery="stale"), (400,), books([]), ["unverified"]),
    ],
)
def test_findings(
    planned: PlannedEvent, statuses: tuple[int, ...], found: Books, expected: list[str]
) -> None:
    assert kinds(check([planned], attempts(*statuses), found)) == expected


def test_an_effect_that_nobody_has_sent() -> None:
    assert kinds(check([], [], books(["a"]))) == ["unverified"]


def note_run(journal: Journal, run: str, arrived: float, ended: str | None = None) -> None:
    journal.note("runs", run=run, event="evt_0", arrived=arrived)

    if ended is not None:
        journal.note("runs", run=run, ended=ended)


@pytest.mark.parametrize(
    ("ended", "ago", "killed", "cause"),
    [
        (None, 90, True, "was killed (handler)"),
        (None, 90, False, None),
        (None, 30, True, None),
        ("processed", 90, True, None),
        ("answered 503", 90, False, "did not take the record"),
        ("answered 503", 30, False, None),
        ("HandlerFailed", 90, False, None),
    ],
)
def test_causes_of_a_double(
    tmp_path: pathlib.Path, ended: str | None, ago: float, killed: bool, cause: str | None
) -> None:
    journal = new_journal(tmp_path / "journal")
    note_run(journal, "a", time.time() - ago, ended)
    note_run(journal, "b", time.time(), "processed")
    pid = journal.read("runs")[0]["pid"]
    journal.note("kills", killed=pid if killed else pid + 1, point="handler")
    journal.close()

    verdict = check([event()], attempts(200, 200), books(["a", "b"]), Causes(journal, 60).explain)

    if cause is None:
        assert kinds(verdict) == ["doubled"]
    else:
        assert not verdict.findings
        assert cause in verdict.explained[0].text


def test_a_run_that_is_longer_than_the_lease(tmp_path: pathlib.Path) -> None:
    journal = new_journal(tmp_path / "journal")
    note_run(journal, "a", time.time(), "processed")
    note_run(journal, "b", time.time(), "processed")
    journal.close()

    assert "longer than the lease" in str(Causes(journal, 0).explain("evt_0", ["a", "b"]))


def test_a_marker_is_given_once(tmp_path: pathlib.Path) -> None:
    journal = new_journal(tmp_path / "journal")

    assert [journal.once("a"), journal.once("a"), journal.once("b")] == [True, False, True]


def test_the_plan_is_a_function_of_the_seed() -> None:
    profile = Profile(400, dies=80, sleeps=10)
    events = make_events(profile, 1)
    deliveries = in_order_of_sending(events, 1)

    assert make_events(profile, 1) == events
    assert in_order_of_sending(events, 1) == deliveries
    assert make_events(profile, 2) != events
    assert sum(point_of(planned.id) is not None for planned in events) == 80
    assert {point_of(planned.id) for planned in events} == set(POINTS)
    assert len({planned.id for planned in events}) == len(events)
    assert len(set(deliveries)) == len(deliveries) == sum(e.deliveries for e in events)
    assert all(planned.deliveries >= 3 for planned in events if planned.forgery is None)
