"""A worker that has the app loaded and one delivery behind it, and says what memory it holds.

``python -m benchmarks.idle MODULE URL``, with the delivery as JSON on standard input. It must not
import what only the benchmarks need, such as the SDK that signs.
"""

from __future__ import annotations

import gc
import importlib
import json
import pathlib
import resource
import sys

from . import wsgi


def main(module: str, url: str) -> None:
    app = importlib.import_module(module).create_app(url)
    delivery = json.load(sys.stdin)
    body = delivery["body"].encode()
    wsgi.deliver(app, [wsgi.environ(delivery["id"], body, delivery["signature"])])
    gc.collect()
    sys.stdout.write(str(resident()))


def resident() -> int:
    """Bytes of memory that this process holds."""
    statm = pathlib.Path("/proc/self/statm")

    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
