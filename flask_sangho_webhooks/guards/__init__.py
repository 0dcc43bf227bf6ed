"""Guards: what remembers which events are processed."""

from .base import Guard as Guard
from .base import Outcome as Outcome
from .sql import SQLGuard as SQLGuard
