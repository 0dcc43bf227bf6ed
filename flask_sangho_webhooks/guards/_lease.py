"""A claim that ends by itself: one attempt of one process to run an event under RedisGuard."""

from __future__ import annotations

import logging
import secrets
import time
import typing as t

from ..errors import EventInProgress, GuardUnavailable
from ..event import Event
from ..signals import lease_lost, send
from .base import Outcome

if t.TYPE_CHECKING:
    from .redis import RedisGuard

PROCESSING = "processing:"
PROCESSED = "processed"

PAUSES_AFTER_SUCCESS = (0.0, 0.1, 0.4)
"""Seconds between attempts. When the handlers have succeeded, more is at stake than a delivery."""

# Each script has one key, returns the owner that it found, and can be repeated when its reply was
# lost.
_TAKE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return ARGV[1]
end
return redis.call('GET', KEYS[1])
"""
_COMPLETE = """
local found = redis.call('GET', KEYS[1])
if not found or found == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return found
"""
DELETE = """
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
return found
"""

logger = logging.getLogger("flask_sangho_webhooks")


class LeasedClaim:
    """One attempt of one process to run an event."""

    def __init__(self, guard: RedisGuard, event: Event) -> None:
        assert guard.lease is not None
        assert guard.retention is not None
        self.guard = guard
        self.event = event
        self.key = guard.key(event.id)
        self.token = PROCESSING + secrets.token_hex(16)
        self.lease_ms = max(1, round(guard.lease * 1000))
        self.retention_ms = round(guard.retention.total_seconds() * 1000)
        # Counted from before the key is set: nobody else can have it until then.
        self.lease_end = time.monotonic() + guard.lease

    def take(self) -> bool:
        """Claim the event.

        :return: whether it is ours; if not, it is processed.
        :raises EventInProgress: if it is somebody else's.
        :raises GuardUnavailable: if Redis does not say.
        """
        owner = self.guard.ask(lambda: self.guard.run(_TAKE, self.key, self.token, self.lease_ms))

        if owner == self.token:
            return True

        if owner == PROCESSED:
            return False

        raise EventInProgress

    def complete(self, outcome: Outcome) -> Outcome:
        """Record the event as processed, unless another run has begun.

        :return: the outcome; ``DUPLICATE`` if another run has recorded the event.
        :raises EventInProgress: if another run is not finished.
        :raises GuardUnavailable: if Redis does not say what became of the record.
        """
        try:
            found = self.guard.ask(
                lambda: self.guard.run(
                    _COMPLETE, self.key, self.token, PROCESSED, self.retention_ms
                ),
                PAUSES_AFTER_SUCCESS,
            )
        except GuardUnavailable:
            logger.error(
                "Event %s (%s) was handled, but Redis did not take the record. Unless it did so"
                " unheard, the event runs again %g seconds after it was claimed.",
                self.event.id,
                self.event.type,
                self.guard.lease,
                extra=self._extra(),
            )
            raise

        if self._is_ours(found, PROCESSED):
            return outcome

        self._warn()

        if found == PROCESSED:
            return Outcome.DUPLICATE

        if found is None:  # nobody's, and recorded now
            return outcome

        raise EventInProgress("Another run has begun since the lease ended, and is not finished.")

    def release(self) -> None:
        """Let the next delivery run the event. Raises nothing: an exception is on its way."""
        try:
            found = self.guard.ask(lambda: self.guard.run(DELETE, self.key, self.token))
        except GuardUnavailable:
            logger.warning(
                "The claim on event %s (%s) could not be released. Deliveries of it are answered"
                " 503 until the lease of %g seconds ends.",
                self.event.id,
                self.event.type,
                self.guard.lease,
                extra=self._extra(),
            )
            return

        if not self._is_ours(found, None):
            self._warn()

    def _is_ours(self, found: str | None, left_behind: str | None) -> bool:
        """Whether the claim was ours to the end.

        :param left_behind: the value that we leave. To find it within the lease means that it is
            ours, and that the reply to an earlier attempt was lost.
        """
        return found == self.token or (found == left_behind and time.monotonic() < self.lease_end)

    def _warn(self) -> None:
        logger.warning(
            "The claim on event %s (%s) was lost before its handlers had finished: they took longer"
            " than the lease of %g seconds, or the key was evicted or deleted. The event may run"
            " twice. Make the lease longer than the slowest handler takes.",
            self.event.id,
            self.event.type,
            self.guard.lease,
            extra=self._extra(),
        )

        send(lease_lost, event=self.event, guard=self.guard)

    def _extra(self) -> dict[str, str]:
        return {"event_id": self.event.id, "event_type": self.event.type}
