"""Whether the clock of a guard's store agrees with this machine's."""

from __future__ import annotations

import collections.abc as c

from ..findings import Finding

MAX_SKEW = 30
"""Seconds by which the two clocks may differ."""


def check_skew(whose: str, before: float, theirs: float, after: float) -> c.Iterator[Finding]:
    """Compare a server's clock with ours.

    :param before: Unix time by our clock before the server was asked.
    :param after: and after its answer.
    """
    skew = max(before - theirs, theirs - after)

    if skew > MAX_SKEW:
        yield Finding(
            "clock-skew",
            "warning",
            f"The clocks of this machine and of {whose} are {skew:.0f} seconds apart (more than"
            f" {MAX_SKEW}). One is wrong: if it is this one, signatures look expired.",
            "timedatectl set-ntp true",
        )
