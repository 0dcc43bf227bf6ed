"""Guards: what remembers which events are processed."""

from ._database import REACH as REACH
from ._session import commit as commit
from ._session import is_joined as is_joined
from ._session import keep_readable as keep_readable
from ._transient import unavailable as unavailable
from .base import Guard as Guard
from .base import Outcome as Outcome
from .base import Record as Record
from .sql import SQLGuard as SQLGuard
