"""Sangho's webhooks for Flask: each event is processed exactly once."""

from __future__ import annotations

import typing as t

from .errors import ConfigError as ConfigError
from .errors import Discard as Discard
from .errors import EventInProgress as EventInProgress
from .errors import GuardUnavailable as GuardUnavailable
from .errors import PayloadError as PayloadError
from .errors import RetryLater as RetryLater
from .errors import SignatureError as SignatureError
from .errors import WebhookError as WebhookError
from .event import Event as Event
from .event_types import EventType as EventType
from .extension import SanghoWebhooks as SanghoWebhooks
from .guards import Guard as Guard
from .guards import Outcome as Outcome
from .guards import SQLGuard as SQLGuard
from .models import ProcessedWebhookEventMixin as ProcessedWebhookEventMixin
from .queue import Queue as Queue
from .signals import delivery_rejected as delivery_rejected
from .signals import event_duplicate as event_duplicate
from .signals import event_failed as event_failed
from .signals import event_processed as event_processed
from .signals import lease_lost as lease_lost

if t.TYPE_CHECKING:
    from .guards.redis import RedisGuard as RedisGuard
else:

    def __getattr__(name: str) -> t.Any:
        # Imported on first use: it needs redis-py, an extra.
        if name == "RedisGuard":
            from .guards.redis import RedisGuard

            return RedisGuard

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
