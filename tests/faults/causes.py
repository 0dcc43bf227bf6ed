"""Why an event had its effect twice under a guard that does not promise to prevent it."""

from __future__ import annotations

import itertools
import typing as t

from .journal import Journal


class Causes:
    """Reads what the runs have noted, and which processes were killed.

    :param lease: of the guard's claims, in seconds.
    """

    def __init__(self, journal: Journal, lease: float) -> None:
        self.lease = lease
        self._runs: dict[str, dict[str, t.Any]] = {}
        self._killed = {kill["killed"]: kill["point"] for kill in journal.read("kills")}

        for line in journal.read("runs"):
            if "ended" in line:
                self._runs[line["run"]] |= {"ended": line["ended"], "end": line["time"]}
            else:
                self._runs[line["run"]] = line

    def explain(self, event_id: str, runs: list[str]) -> str | None:
        """Name the cause of each run but the last, or ``None`` if one has none."""
        causes = [self._cause(run, after) for run, after in itertools.pairwise(runs)]
        return None if None in causes else "; ".join(t.cast(list[str], causes))

    def _cause(self, run: str, after: str) -> str | None:
        """Why a run that has committed was not the last."""
        noted, next_one = self._runs.get(run), self._runs.get(after)

        # Whatever has happened: the claim, made after the arrival, was good for that long.
        if not noted or not next_one or next_one["time"] < noted["arrived"] + self.lease:
            return None

        pid = noted["pid"]

        if "ended" not in noted:
            point = self._killed.get(pid)
            return None if point is None else f"its worker was killed ({point})"

        seconds = noted["end"] - noted["time"]

        if seconds > self.lease:
            return f"it took {seconds:.1f} s, longer than the lease"

        if noted["ended"] == "answered 503":
            return "Redis did not take the record, and the lease ran out"

        return None
