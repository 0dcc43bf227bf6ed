"""Ports for servers that come and go."""

from __future__ import annotations

import contextlib
import random
import socket


def lasting_port() -> int:
    """A free one for a server that is stopped and started.

    Below those that systems give to outgoing connections: one of them could take the port while the
    server is down.
    """
    for port in random.sample(range(15000, 30000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

    raise RuntimeError("No port is free.")
