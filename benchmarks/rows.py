"""The rows of the table."""

from __future__ import annotations

import collections.abc as c
import functools

from . import cleanup, growth, in_flight, redis_rows, requests, server, startup, verification
from .measure import Bench, Result
from .servers import Dialect

Row = c.Callable[[Bench], list[Result]]

DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgresql", "mariadb")

ROWS: dict[str, Row] = {
    "verify": verification.small,
    "verify-large": verification.large,
    "verify-growth": verification.growth,
    **{f"new-{name}": functools.partial(requests.new_event, name) for name in DIALECTS},
    **{f"duplicate-{name}": functools.partial(requests.duplicate, name) for name in DIALECTS},
    "without-handler": requests.without_handler,
    "redis-new": redis_rows.new,
    "redis-duplicate": redis_rows.duplicate,
    "in-flight": in_flight.in_flight,
    "claim-growth": growth.claim,
    "import": startup.import_time,
    "memory": startup.memory,
    "server": server.whole_server,
    # The last, since they take as many rounds as there is time for.
    **{f"cleanup-{name}": functools.partial(cleanup.cleanup, name) for name in DIALECTS},
}

UNPROFILED = {"verify-growth", "in-flight", "memory", "server"}
"""Their work is that of other rows, or not a matter of time."""
