"""Sangho's webhooks for Flask: each event is processed exactly once."""

from __future__ import annotations

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
from .extension import Queue as Queue
from .extension import SanghoWebhooks as SanghoWebhooks
from .guards import Guard as Guard
from .guards import Outcome as Outcome
from .guards import SQLGuard as SQLGuard
from .models import ProcessedWebhookEventMixin as ProcessedWebhookEventMixin
from .signals import delivery_rejected as delivery_rejected
from .signals import event_duplicate as event_duplicate
from .signals import event_failed as event_failed
from .signals import event_processed as event_processed
