"""Sangho, as its contract describes it: several senders that deliver at least once."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import json
import multiprocessing
import multiprocessing.sharedctypes
import pathlib
import random
import threading
import time
import typing as t

import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]

from .http import Connection, Cut, NoAnswer
from .plan import in_order_of_sending, PlannedEvent, SLEEP

PROCESSES = 2
THREADS = 12
TIMEOUT = 5.0
MAX_ATTEMPTS = 80
SKEW = 200
"""Seconds that the clock of a sender may be wrong, of the 300 that are tolerated."""

OLD, NEW, FOREIGN = "whsec_old_0123456789abcdef", "whsec_new_0123456789abcdef", "whsec_of_another"
ROTATION: t.Final = ((OLD,), (NEW, OLD), (NEW,))
"""What the receiver accepts, one after another."""

_CUTS: t.Final[tuple[tuple[Cut, float], ...]] = (
    ("request", 0.01),
    ("reply", 0.02),
    ("slow", 0.01),
)


@dataclasses.dataclass(frozen=True)
class Task:
    """What one sender process is to do.

    :param share: its number. Each delivery belongs to one process; those of an event do not.
    """

    port: int
    events: list[PlannedEvent]
    seed: int
    share: int
    log: pathlib.Path
    timeout: float = TIMEOUT
    patience: float = 90
    """Seconds without an acknowledgement after which it gives up."""


@dataclasses.dataclass
class Delivery:
    """One delivery, attempted until it is acknowledged."""

    event: PlannedEvent
    number: int
    attempts: int = 0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A line of the sender's log. Status 0: there was no answer, and ``reason`` says why."""

    event_id: str
    delivery: int
    number: int
    began: float
    ended: float
    status: int
    reason: str


class Progress:
    """What the senders and the one who watches them share."""

    def __init__(self, events: list[PlannedEvent]) -> None:
        context = multiprocessing.get_context("spawn")
        self.total = sum(event.deliveries for event in events)
        self.done: t.Any = context.Value("i", 0)
        """Deliveries that are over."""
        self.phase: t.Any = context.Value("i", 0)
        """Of the rotation of the secret."""

    @property
    def fraction(self) -> float:
        return float(self.done.value / self.total)


def start(
    port: int, events: list[PlannedEvent], seed: int, folder: pathlib.Path, progress: Progress
) -> list[t.Any]:
    """Start the sender processes."""
    context = multiprocessing.get_context("spawn")
    processes = []

    for share in range(PROCESSES):
        task = Task(port, events, seed, share, folder / f"sender-{share}.jsonl")
        arguments = (task, progress.done, progress.phase)
        process = context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        processes.append(process)

    return processes


def read_log(folder: pathlib.Path) -> list[Attempt]:
    """What the senders have noted."""
    return [
        Attempt(*json.loads(line))
        for path in sorted(folder.glob("sender-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def _run(task: Task, done: t.Any, phase: t.Any) -> None:
    Sender(task, done, phase).run()


class Sender:
    """One process."""

    def __init__(self, task: Task, done: t.Any, phase: t.Any) -> None:
        self.task = task
        self._done = done
        self._phase = phase
        everything = in_order_of_sending(task.events, task.seed)
        mine = (Delivery(*pair) for pair in everything[task.share :: PROCESSES])
        self._fresh = collections.deque(mine)
        self._left = len(self._fresh)
        self._again: list[tuple[float, int, Delivery]] = []
        self._tie = itertools.count()
        self._changed = threading.Condition()
        self._progressed = time.monotonic()
        self._log: list[Attempt] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(THREADS)]

        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join()

        with self.task.log.open("w") as file:
            for attempt in self._log:
                file.write(json.dumps(dataclasses.astuple(attempt)) + "\n")

    def _work(self, number: int) -> None:
        rng = random.Random(f"sender {self.task.seed} {self.task.share} {number}")
        connection = Connection(self.task.port)

        while (delivery := self._next()) is not None:
            acknowledged = self._attempt(delivery, connection, rng)
            self._finish(delivery, acknowledged, rng)

        connection.close()

    def _next(self) -> Delivery | None:
        with self._changed:
            while self._left:
                now = time.monotonic()

                if now > self._progressed + self.task.patience:
                    return None

                if self._again and self._again[0][0] <= now:
                    return heapq.heappop(self._again)[2]

                if self._fresh:
                    return self._fresh.popleft()

                self._changed.wait(min(0.2, self._again[0][0] - now) if self._again else 0.2)

        return None

    def _finish(self, delivery: Delivery, acknowledged: bool, rng: random.Random) -> None:
        with self._changed:
            if acknowledged or delivery.event.forgery or delivery.attempts >= MAX_ATTEMPTS:
                self._left -= 1
                self._progressed = time.monotonic()

                with self._done.get_lock():
                    self._done.value += 1
            else:
                pause = min(0.1 * 1.7**delivery.attempts, 2) * rng.uniform(0.5, 1)
                due = time.monotonic() + pause
                heapq.heappush(self._again, (due, next(self._tie), delivery))

            self._changed.notify()

    def _attempt(self, delivery: Delivery, connection: Connection, rng: random.Random) -> bool:
        event = delivery.event
        delivery.attempts += 1
        body = event.body
        head = (
            "POST /webhook HTTP/1.1\r\nContent-Type: application/json\r\n"
            f"Sangho-Signature: {self._sign(event, body, rng)}\r\nSangho-Event-ID: {event.id}\r\n"
        )

        if event.forgery == "body":
            body = body.replace(b"5000", b"1000")

        timeout = SLEEP / 2 if event.does == "sleeps" else self.task.timeout
        began = time.time()

        try:
            answer = connection.request(head, body, timeout=timeout, cut=_choose_cut(rng))
        except NoAnswer as error:
            status, reason = 0, str(error)
        else:
            status = answer.status
            reason = "" if status < 400 else _reason(answer.body)

        self._log.append(
            Attempt(
                event.id, delivery.number, delivery.attempts, began, time.time(), status, reason
            )
        )
        return 200 <= status < 300

    def _sign(self, event: PlannedEvent, body: bytes, rng: random.Random) -> str:
        """A fresh signature, made by the official SDK."""
        now = int(time.time()) + rng.randint(-SKEW, SKEW)
        secrets: tuple[str, ...] = ROTATION[self._phase.value]

        if event.forgery == "secret":
            secrets = (FOREIGN,)
        elif event.forgery == "stale":
            now = int(time.time()) - 301 - rng.randint(0, 1000)

        if len(secrets) == 2:
            secrets = rng.choice((secrets, secrets[:1], secrets[1:]))

        headers = [sdk.Webhooks.generate_test_header(body, secret, now) for secret in secrets]
        return ",".join([headers[0], *(header.partition(",")[2] for header in headers[1:])])


def _choose_cut(rng: random.Random) -> Cut:
    value = rng.random()

    for cut, share in _CUTS:
        value -= share

        if value < 0:
            return cut

    return ""


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
