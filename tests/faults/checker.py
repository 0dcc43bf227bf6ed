"""Reads the books and the sender's log, and says what is wrong."""

from __future__ import annotations

import collections
import collections.abc as c
import dataclasses
import typing as t

from .ledger import Books, JUNK
from .plan import PlannedEvent
from .sender import Attempt

Kind = t.Literal["lost", "doubled", "half_done", "unverified", "unfinished"]


@dataclasses.dataclass(frozen=True)
class Finding:
    kind: Kind
    event_id: str
    text: str


@dataclasses.dataclass
class Verdict:
    """:param explained: doubles that the guard does not promise to prevent, with their causes."""

    findings: list[Finding]
    explained: list[Finding] = dataclasses.field(default_factory=list)

    def count(self, kind: Kind) -> int:
        return sum(finding.kind == kind for finding in self.findings)


Explain = c.Callable[[str, list[str]], "str | None"]
"""Given an event and its runs that had an effect, says why there is more than one, if it can."""


def check(
    events: list[PlannedEvent],
    attempts: list[Attempt],
    books: Books,
    explain: Explain = lambda event_id, runs: None,
) -> Verdict:
    """Compare what was acknowledged with what happened.

    :param events: that were sent, the forged ones among them.
    :param attempts: every one.
    :param books: read when nothing runs any more.
    """
    acknowledged: dict[str, set[int]] = collections.defaultdict(set)

    for attempt in attempts:
        if 200 <= attempt.status < 300:
            acknowledged[attempt.event_id].add(attempt.delivery)

    verdict = Verdict([])

    for event in events:
        _check_event(event, acknowledged[event.id], books, explain, verdict)

    known = {event.id for event in events}

    for event_id in {*books.ledger, *books.effect, *(books.recorded or ())} - known:
        verdict.findings.append(Finding("unverified", event_id, "nobody has sent it"))

    return verdict


def _check_event(
    event: PlannedEvent, acknowledged: set[int], books: Books, explain: Explain, verdict: Verdict
) -> None:
    runs = books.ledger.get(event.id, [])
    effects = books.effect.get(event.id, [])
    count = min(len(runs), len(effects))

    def find(kind: Kind, text: str) -> None:
        verdict.findings.append(Finding(kind, event.id, f"{event.does}: {text}"))

    if event.forgery:
        is_recorded = event.id in (books.recorded or ())

        if acknowledged or runs or effects or is_recorded:
            find("unverified", f"forged ({event.forgery}), and acknowledged, written or recorded")

        return

    if sorted(runs) != sorted(effects):
        find("half_done", f"the first write is there {len(runs)} times, the second {len(effects)}")
    elif JUNK in runs:
        find("half_done", "what the handler has rolled back is there")

    if len(acknowledged) < event.deliveries:
        find("unfinished", f"{len(acknowledged)} of {event.deliveries} deliveries acknowledged")

    if books.recorded is not None and acknowledged and event.id not in books.recorded:
        find("lost", "acknowledged, and not recorded: it would run again")

    if acknowledged and count < event.effects:
        find("lost", f"{len(acknowledged)} deliveries were acknowledged, and it had no effect")
    elif count > event.effects:
        cause = explain(event.id, effects)
        text = f"it had its effect {count} times, not {event.effects}"

        if cause is None:
            find("doubled", text)
        else:
            verdict.explained.append(Finding("doubled", event.id, f"{text}: {cause}"))
