"""One receiver under one set of faults, from an empty database to a verdict."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import time
import typing as t

from .app import create_tables, TABLE
from .chaos import Chaos, SlowProxy
from .checker import check, Explain, Kind, Verdict
from .databases import Database, SQLite, Unavailable
from .journal import Journal, new_journal
from .ledger import read_books
from .plan import make_events, Profile
from .sender import Attempt, Progress, read_log, ROTATION, start
from .server import Server
from .settings import Receiver, Settings


@dataclasses.dataclass
class Faults:
    """How often something is broken."""

    kills: int
    """Random ones, beside those that the events ask for."""
    reloads: int = 2
    connections: int = 0
    restarts: int = 0
    losses: int = 0
    delays: int = 0
    at_least: tuple[int, int, int] = (0, 0, 0)
    """Kills, connections killed and restarts, without which the run proves too little."""


@dataclasses.dataclass
class Result:
    """A line of the table."""

    name: str
    events: int = 0
    deliveries: int = 0
    kills: int = 0
    connections: int = 0
    restarts: int = 0
    verdict: Verdict = dataclasses.field(default_factory=lambda: Verdict([]))
    seconds: float = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    """What makes the run fail, apart from the verdict."""
    expects: Kind | None = None
    """What has to be found."""
    skipped: str = ""

    @property
    def failed(self) -> bool:
        if self.skipped:
            return bool(os.environ.get("CI"))

        if self.expects is not None:
            return bool(self.problems) or self.verdict.count(self.expects) == 0

        return bool(self.problems) or bool(self.verdict.findings)


class Scenario:
    """What all scenarios have in common. A subclass adds servers of its own.

    :param folder: new, of this scenario's own.
    """

    receiver: Receiver = "sql"
    expects: Kind | None = None
    threads = 4

    def __init__(
        self,
        name: str,
        database: t.Callable[[], Database],
        profile: Profile,
        faults: Faults,
        *,
        seed: int,
        folder: pathlib.Path,
    ) -> None:
        self.name = name
        self.make_database = database
        self.profile = profile
        self.faults = faults
        self.seed = seed
        self.folder = folder

    def run(self) -> Result:
        self.result = Result(self.name, expects=self.expects)
        self.journal = new_journal(self.folder)
        began = time.monotonic()

        try:
            with contextlib.ExitStack() as stack:
                self._run(stack)
        except Unavailable as error:
            self.result.skipped = str(error)
        finally:
            self.journal.close()

        self.result.seconds = time.monotonic() - began
        return self.result

    def _run(self, stack: contextlib.ExitStack) -> None:
        self.database = stack.enter_context(self.make_database())
        create_tables(self.database.url())
        self.proxy: SlowProxy | None = None

        if not isinstance(self.database, SQLite):
            self.proxy = stack.enter_context(SlowProxy(f"tcp://127.0.0.1:{self.database.port}"))

        self.set_up(stack)
        events = make_events(self.profile, self.seed, int(time.time()))
        progress = Progress(events)
        server = Server(self.settings(0), self.folder, threads=self.threads)
        chaos = self._plan_chaos(progress, server)

        with server.serve():
            with chaos:
                for process in start(server.port, events, self.seed, self.folder, progress):
                    process.join()

                    if process.exitcode != 0:
                        self.result.problems.append("A sender failed.")

            self.settle()

        if chaos.error is not None:
            raise chaos.error

        attempts = read_log(self.folder)
        books = read_books(self.database.url(), TABLE if self.records_in_database else None)
        self.result.verdict = check(events, attempts, books, self.explain())
        self._count(chaos, attempts)

    # -- for subclasses ---------------------------------------------------------

    records_in_database = True
    breaks_database = True

    def set_up(self, stack: contextlib.ExitStack) -> None:
        """Start what the receiver needs besides the database."""

    def more_chaos(self, chaos: Chaos) -> None:
        """Break it."""

    def more_settings(self) -> dict[str, t.Any]:
        return {}

    def settle(self) -> None:
        """Wait until nothing runs any more. Every delivery has been acknowledged."""

    def explain(self) -> Explain:
        return lambda event_id, runs: None

    # ---------------------------------------------------------------------------

    def settings(self, phase: int) -> Settings:
        port = self.proxy.port if self.proxy is not None else None
        return Settings(
            folder=str(self.folder),
            receiver=self.receiver,
            database_url=self.database.url(port),
            secrets=ROTATION[phase],
            **self.more_settings(),
        )

    def _plan_chaos(self, progress: Progress, server: Server) -> Chaos:
        faults = self.faults
        chaos = Chaos(progress, self.journal, self.seed)
        chaos.kill_workers(server, faults.kills)
        chaos.reload(server, faults.reloads)
        chaos.rotate_secret(server, self.settings)

        if self.proxy is not None and self.breaks_database:
            chaos.break_wire(
                self.proxy, losses=faults.losses, delays=faults.delays, command=b"COMMIT"
            )
            chaos.break_database(
                self.database, connections=faults.connections, restarts=faults.restarts
            )

        self.more_chaos(chaos)
        return chaos

    def _count(self, chaos: Chaos, attempts: list[Attempt]) -> None:
        result = self.result
        result.events = self.profile.events
        result.deliveries = len(attempts)
        result.kills = count_kills(self.journal)
        result.connections = chaos.counts["kill connections"]
        result.restarts = chaos.counts["restart"]
        done = (result.kills, result.connections, result.restarts)

        if any(count < least for count, least in zip(done, self.faults.at_least, strict=True)):
            result.problems.append(f"Too little was broken: {done}, not {self.faults.at_least}.")

        # Without the point at which a worker died, which may have been another event's.
        causes = collections.Counter(
            re.sub(r" \(.*?\)", "", finding.text.partition(": ")[2])
            for finding in result.verdict.explained
        )
        result.notes += [f"{count} doubled: {cause}" for cause, count in causes.most_common()]
        answers = collections.Counter(f"{a.status} {a.reason}".strip() for a in attempts)
        (self.folder / "summary.json").write_text(
            json.dumps(
                {
                    "answers": answers,
                    "faults": chaos.counts,
                    "points": collections.Counter(k["point"] for k in self.journal.read("kills")),
                    "findings": [dataclasses.astuple(f) for f in result.verdict.findings],
                    "explained": [dataclasses.astuple(f) for f in result.verdict.explained],
                },
                indent=1,
            )
        )


def count_kills(journal: Journal) -> int:
    """Processes that were killed: one that dies is not counted twice."""
    return len({kill["killed"] for kill in journal.read("kills")})
