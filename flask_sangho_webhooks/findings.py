"""What ``flask sangho check`` finds."""

from __future__ import annotations

import dataclasses
import typing as t

Level = t.Literal["error", "warning", "advice"]
"""An error loses events, runs them twice or rejects them all; a warning may; advice is good to
know."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that is wrong, and how to fix it. Holds no secret, and no password."""

    code: str
    """A stable, machine-readable name."""

    level: Level
    message: str
    fix: str
    """The line to add or to run, or what else to do. Empty if the message says it."""

    endpoint: str | None = None
    """The name of the endpoint; None if it concerns the app."""
