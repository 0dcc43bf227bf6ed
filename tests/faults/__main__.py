"""Thin: every process of the senders loads it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from .command import main

    sys.exit(main())
