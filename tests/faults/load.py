"""Many senders at once for a minute, with nothing broken: what leaks, shows."""

from __future__ import annotations

import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import threading
import time
import typing as t

import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]

from .app import create_tables, TABLE
from .checker import check
from .databases import Database, PostgreSQL
from .http import Answer, Connection, NoAnswer
from .journal import new_journal
from .ledger import read_books
from .plan import PlannedEvent
from .scenario import Result
from .sender import Attempt, NEW
from .server import children, Server
from .settings import Settings

PROCESSES = 2
SENDERS = 64
WORKERS = 4
THREADS = 8
WARM_UP = 5
"""Seconds, until each pool holds the connections that it keeps."""

TOLERANCE = 0.03
"""Growth of the workers' memory, between the 10th second and the last. Caches and the allocator
are still filling then; a leak of 500 bytes for each delivery would be more.
"""

EXPLAINED = {"in_progress", "unavailable"}


class Load:
    """A scenario."""

    def __init__(self, name: str, seconds: int, *, seed: int, folder: pathlib.Path) -> None:
        self.name = name
        self.seconds = seconds
        self.seed = seed
        self.folder = folder

    def run(self) -> Result:
        self.result = Result(self.name)
        new_journal(self.folder)
        began = time.monotonic()

        with contextlib.ExitStack() as stack:
            database = stack.enter_context(PostgreSQL())
            create_tables(database.url())
            settings = Settings(str(self.folder), "sql", database.url(), (NEW,))
            server = Server(settings, self.folder, workers=WORKERS, threads=THREADS)
            stack.enter_context(server.serve())
            self._send(server, WARM_UP, first_share=PROCESSES)  # fills the pools
            before = database.count_connections()
            sizes = self._send(server, self.seconds)
            self._check_memory(sizes)
            self._check_connections(server, before, database)
            attempts = _read_log(self.folder)
            self._check_answers(attempts, database)

        self.result.seconds = time.monotonic() - began
        return self.result

    def _send(self, server: Server, seconds: int, first_share: int = 0) -> list[int]:
        """Send for a while.

        :param first_share: tells the events of one call from those of another.
        :return: the memory of all workers in bytes, every second.
        """
        context = multiprocessing.get_context("spawn")
        end = time.time() + seconds
        processes = [
            context.Process(
                target=_run, args=(server.port, self.seed, share, end, str(self.folder))
            )
            for share in range(first_share, first_share + PROCESSES)
        ]

        for process in processes:
            process.start()

        sizes = []

        while time.time() < end:
            sizes.append(sum(map(_memory, children(server.pid))))
            time.sleep(1)

        for process in processes:
            process.join()

            if process.exitcode != 0:
                self.result.problems.append("A sender failed.")

        return sizes

    def _check_memory(self, sizes: list[int]) -> None:
        start = min(10, len(sizes) // 3)
        early = statistics.median(sizes[start - 2 : start + 3])
        late = statistics.median(sizes[-5:])
        growth = late / early - 1
        self.result.notes.append(
            f"memory of {WORKERS} workers: {early / 2**20:.1f} MiB at second {start},"
            f" {late / 2**20:.1f} MiB at second {len(sizes)} ({growth:+.1%})"
        )

        # A shorter run ends while caches are still filling.
        if self.seconds >= 60 and growth > TOLERANCE:
            self.result.problems.append(f"Memory has grown by {growth:.1%}.")

    def _check_connections(
        self, server: Server, before: tuple[int, int], database: Database
    ) -> None:
        pools: dict[int, dict[str, int]] = {}
        end = time.monotonic() + 20

        while len(pools) < WORKERS and time.monotonic() < end:
            connection = Connection(server.port)
            answer = connection.request("GET /pool HTTP/1.1\r\n", timeout=5)
            connection.close()
            pool = json.loads(answer.body)
            pools[pool["pid"]] = pool

        out = sum(pool["out"] for pool in pools.values())
        idle = sum(pool["idle"] for pool in pools.values())
        total, busy = database.count_connections()
        self.result.notes.append(
            f"connections: {before[0]} before, {total} after, of which {idle} idle in"
            f" {len(pools)} pools; {out} checked out, {busy} in a transaction"
        )

        if out or busy or total != idle or total != before[0] or len(pools) != WORKERS:
            self.result.problems.append("A database connection has leaked.")

    def _check_answers(self, attempts: list[Attempt], database: Database) -> None:
        answers = collections.Counter(f"{a.status} {a.reason}".strip() for a in attempts)
        unexplained = sum(a.status != 200 and a.reason not in EXPLAINED for a in attempts)
        ids = {attempt.event_id for attempt in attempts}
        acknowledged = {attempt.event_id for attempt in attempts if attempt.status == 200}
        # The others were in progress when they were sent last.
        events = [PlannedEvent(event_id, "plain", 0) for event_id in sorted(ids)]
        result = self.result
        result.verdict = check(events, attempts, read_books(database.url(), TABLE))
        result.events = len(acknowledged)
        result.deliveries = len(attempts)
        shown = ", ".join(f"{count:,} times {answer}" for answer, count in answers.most_common())
        result.notes.append(
            f"{SENDERS} senders, {self.seconds} s: {shown}; {unexplained} unexplained"
        )

        if unexplained:
            result.problems.append(f"{unexplained} answers are unexplained.")


def _memory(pid: int) -> int:
    """The bytes of a process that are in memory."""
    try:
        pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0

    return int(pages[1]) * os.sysconf("SC_PAGESIZE")


def _run(port: int, seed: int, share: int, end: float, folder: str) -> None:
    recent: collections.deque[str] = collections.deque(maxlen=200)
    log: list[Attempt] = []

    def work(number: int) -> None:
        rng = random.Random(f"load {seed} {share} {number}")
        connection = Connection(port)
        count = 0

        while time.time() < end:
            if recent and rng.random() < 0.6:
                event_id = rng.choice(list(recent))
            else:
                event_id = f"evt_0{share:x}{number:02x}{count:08x}"
                count += 1
                recent.append(event_id)

            log.append(_deliver(connection, event_id))

        connection.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(SENDERS // PROCESSES)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    with (pathlib.Path(folder) / f"load-{share}.jsonl").open("w") as file:
        file.writelines(json.dumps(list(vars(attempt).values())) + "\n" for attempt in log)


def _deliver(connection: Connection, event_id: str) -> Attempt:
    body = PlannedEvent(event_id, "plain", 1).body
    signature = sdk.Webhooks.generate_test_header(body, NEW)
    head = (
        "POST /webhook HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Sangho-Signature: {signature}\r\nSangho-Event-ID: {event_id}\r\n"
    )
    began = time.time()

    try:
        answer = connection.request(head, body, timeout=30)
    except NoAnswer as error:
        return Attempt(event_id, 0, 1, began, time.time(), 0, str(error))

    reason = _reason(answer)
    return Attempt(event_id, 0, 1, began, time.time(), answer.status, reason)


def _reason(answer: Answer) -> str:
    if answer.status == 200:
        return ""

    with contextlib.suppress(ValueError):
        reason = str(json.loads(answer.body).get("error"))
        return reason if answer.has(b"Retry-After") else f"{reason} without Retry-After"

    return "no JSON"


def _read_log(folder: pathlib.Path) -> list[Attempt]:
    return [
        Attempt(*t.cast("list[t.Any]", json.loads(line)))
        for path in sorted(folder.glob("load-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
