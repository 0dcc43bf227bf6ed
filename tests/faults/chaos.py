"""Breaks things while events are sent: how often, is in the plan; when, and which, in the seed."""

from __future__ import annotations

import collections
import collections.abc as c
import functools
import random
import threading
import time
import typing as t

from ..proxy import Loss, Proxy
from .brokers import Broker
from .databases import Database
from .journal import Journal
from .sender import Progress, ROTATION
from .server import kill_one, Server

Action = c.Callable[[], object]

_LATEST = 0.93
"""The share of the deliveries after which nothing is broken any more."""


class Chaos:
    """Actions, each at its share of the deliveries. Enter it to start, leave it when all is sent.

    :param counts: of what was done, by name.
    """

    def __init__(self, progress: Progress, journal: Journal, seed: int) -> None:
        self.progress = progress
        self.journal = journal
        self.rng = random.Random(f"chaos {seed}")
        self.counts: collections.Counter[str] = collections.Counter()
        self.error: BaseException | None = None
        self._actions: list[tuple[float, str, Action]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def spread(self, name: str, times: int, action: Action) -> None:
        """Do something at random moments."""
        for _ in range(times):
            self._actions.append((self.rng.uniform(0.02, _LATEST), name, action))

    def at(self, share: float, name: str, action: Action) -> None:
        self._actions.append((share, name, action))

    def __enter__(self) -> Chaos:
        self._actions.sort(key=lambda action: action[0])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for share, name, action in self._actions:
                while self.progress.fraction < share:
                    if self._over.wait(0.005):
                        return

                self.journal.note("faults", name=name)
                done = action()
                self.counts[name] += int(done) if isinstance(done, (bool, int)) else 1
        except BaseException as error:
            self.error = error

    # -- what can be done -------------------------------------------------------

    def kill_workers(self, server: Server, times: int) -> None:
        """SIGKILL, at random."""
        self.spread(
            "kill worker",
            times,
            lambda: kill_one(server.pid, self.journal, self.rng, "random"),
        )

    def reload(self, server: Server, times: int) -> None:
        self.spread("reload", times, server.reload)

    def rotate_secret(self, server: Server, change: c.Callable[[int], t.Any]) -> None:
        """Restart the server twice, so that a new secret replaces the old one.

        :param change: the settings of a phase.
        """

        def rotate(phase: int) -> None:
            # The receiver learns a secret before the sender uses it, and forgets it after.
            if phase == len(ROTATION) - 1:
                self.progress.phase.value = phase

            server.restart(change(phase))
            self.progress.phase.value = phase

        for phase in range(1, len(ROTATION)):
            self.at(phase / len(ROTATION), "rotation", functools.partial(rotate, phase))

    def break_database(self, database: Database, *, connections: int, restarts: int) -> None:
        """Kill so many connections at least, and stop and start the server."""
        per_action = 2

        for _ in range(-(-connections // per_action)):
            self.spread("kill connections", 1, lambda: self._kill_connections(database, per_action))

        self._restart(restarts, functools.partial(restart, database))

    def _restart(self, times: int, action: c.Callable[[bool], object]) -> None:
        """Stop a server in order, and the next time without notice."""
        for number in range(times):
            share = (number + 0.5) / times * _LATEST
            self.at(share, "restart", functools.partial(action, number % 2 == 1))

    def _kill_connections(self, database: Database, count: int) -> int:
        """Wait for the app to have some again, if need be."""
        killed = 0

        for _ in range(100):
            killed += database.kill_connections(count - killed, self.rng)

            if killed >= count or self._over.wait(0.05):
                break

        return killed

    def break_broker(self, broker: Broker, *, connections: int, restarts: int) -> None:
        """Close all connections so many times, and stop and start the broker."""
        self.spread("kill connections", connections, broker.kill_connections)

        self._restart(restarts, broker.restart)

    def break_wire(self, proxy: SlowProxy, *, losses: int, delays: int, command: bytes) -> None:
        """Lose requests with a command or their replies, and hold everything up."""

        def lose() -> None:
            loss: Loss = self.rng.choice(("request", "reply"))
            proxy.lose(loss, command)

        self.spread(f"lose {command.decode()}", losses, lose)
        self.spread("delay", delays, lambda: proxy.delay(self.rng.uniform(0.05, 0.4)))


def restart(database: Database, crash: bool, pause: float = 0.3) -> None:
    """Stop and start a server."""
    database.stop(crash=crash)
    time.sleep(pause)
    database.start()


class SlowProxy(Proxy):
    """Holds everything up when told to."""

    def delay(self, seconds: float) -> None:
        with self._lock:
            time.sleep(seconds)
