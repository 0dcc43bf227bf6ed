"""What every guard promises."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime as dt
import enum
import typing as t

from ..event import Event

Dispatch = c.Callable[[], None]
"""Runs the handlers of one event and commits ``db.session``. Raises what a handler raises."""

MAX_BATCH_SIZE = 100_000
"""Records that one transaction of a cleanup deletes, at most."""

Progress = c.Callable[[int], None]
"""Told how many records each batch of a cleanup deleted."""


class Outcome(enum.Enum):
    """What became of an event. Every one is final: the event is not needed again."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    DISCARDED = "discarded"
    UNHANDLED = "unhandled"
    QUEUED = "queued"


@dataclasses.dataclass(frozen=True)
class Record:
    """That an event was processed."""

    event_id: str
    event_type: str
    processed_at: dt.datetime | None
    """In UTC. Only records that the guard has not made may lack it."""


class Guard(t.Protocol):
    """Lets each event through once. Methods are called inside an app context.

    A guard may have more, which is used if it is there: ``bind(config)`` returns the guard to use
    in an app with that configuration; ``model`` is the model of its table, and ``table`` the table;
    ``db`` is the database in whose transaction it records events; ``records(pattern, limit)``
    returns a :class:`.Record` of each event whose type matches, the newest first; ``check(prefix)``
    yields a :class:`.Finding` for each thing that is wrong with the guard's store, which it only
    reads. The prefix is that of the endpoint's keys in the configuration.
    """

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        """Claim the event, run ``dispatch``, record the event.

        :return: ``PROCESSED``; ``DUPLICATE`` without a run if the event is recorded; ``DISCARDED``
            if ``dispatch`` raised :exc:`.Discard`, with the event recorded all the same.
        :raises EventInProgress: if another run of the event is not finished.
        :raises GuardUnavailable: if the store cannot be asked or does not answer in time.
        :raises Exception: whatever else ``dispatch`` raises; then nothing is recorded.
        """

    def seen(self, event_id: str) -> bool:
        """Whether the event is recorded as processed.

        :raises GuardUnavailable: if the store cannot be asked.
        """

    def forget(self, event_id: str) -> bool:
        """Delete the record, so that the next delivery runs the handlers again.

        :return: whether there was one.
        :raises EventInProgress: if the event is being processed right now, where that is known.
        :raises GuardUnavailable: if the store cannot be asked.
        """

    def cleanup(
        self,
        older_than: dt.timedelta,
        *,
        batch_size: int = MAX_BATCH_SIZE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete old records in batches, with a commit each.

        :param older_than: records older than this are deleted. Nothing is refused here; the
            command line asks for at least 48 hours.
        :param batch_size: records in a transaction, at most. A batch has fewer, though not less
            than 5,000, if more would take longer than half of ``SANGHO_WEBHOOK_LOCK_TIMEOUT``.
        :param dry_run: count, delete nothing.
        :return: how many records were deleted, or would be.
        :raises GuardUnavailable: if the store cannot be asked.
        """
