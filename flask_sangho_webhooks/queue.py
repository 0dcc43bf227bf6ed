"""What hands events to a worker."""

from __future__ import annotations

import typing as t

from .event import Event

if t.TYPE_CHECKING:
    from .extension import SanghoWebhooks


class Queue(t.Protocol):
    """Takes verified events to a worker, which calls :meth:`SanghoWebhooks.process`.

    A queue may have a method ``check(prefix)``, as guards may.
    """

    def enqueue(self, webhooks: SanghoWebhooks, event: Event) -> None:
        """Hand the event over; a return is a promise that a worker will see it.

        :raises GuardUnavailable: if that is not sure. Other exceptions reach Flask.
        """
