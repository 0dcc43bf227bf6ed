"""What an app pays before its first delivery: time to import and set up, and memory."""

from __future__ import annotations

import json
import subprocess
import sys

from .deliveries import event_body, new_id, sign
from .measure import Bench, Goal, Result

IMPORT = """
import time
import flask
started = time.perf_counter()
import flask_sqlalchemy
theirs = time.perf_counter() - started

app = flask.Flask("app")
app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", SANGHO_WEBHOOK_SECRET="whsec_0123456789")
db = flask_sqlalchemy.SQLAlchemy(app)

started = time.perf_counter()
from flask_sangho_webhooks import SanghoWebhooks
webhooks = SanghoWebhooks(db)
app.register_blueprint(webhooks.blueprint)
print(time.perf_counter() - started, theirs)
"""
PROCESSES = 2
"""In a round of the time to import, of which the quicker counts: the other was disturbed."""
MEMORY_ROUNDS = 5
"""Memory varies little."""


def import_time(bench: Bench) -> list[Result]:
    ours, theirs = [], []
    _run("-c", IMPORT)  # writes the compiled modules

    if bench.profiling:
        bench.profiles.append(_import_profile())

    for _ in range(bench.rounds):
        runs = [_run("-c", IMPORT).split() for _ in range(1 if bench.smoke else PROCESSES)]
        ours.append(min(float(run[0]) for run in runs))
        theirs.append(min(float(run[1]) for run in runs))

    return [
        Result(
            work="import of the package and init_app",
            rival="importing Flask-SQLAlchemy",
            goal=Goal(0.25),
            ours=ours,
            theirs=theirs,
        )
    ]


def memory(bench: Bench) -> list[Result]:
    url = bench.servers.database("postgresql")
    modules = ("benchmarks.ours", "benchmarks.recipe", "benchmarks.bare")
    samples: dict[str, list[float]] = {module: [] for module in modules}

    for _ in range(min(bench.rounds, MEMORY_ROUNDS)):
        for module in modules:
            body = event_body(event_id := new_id())
            delivery = {"id": event_id, "signature": sign(body), "body": body.decode()}
            found = _run("-m", "benchmarks.idle", module, url, given=json.dumps(delivery))
            samples[module].append(float(found))

    ours, theirs, floor = samples.values()
    return [
        Result(
            work="memory of one idle worker",
            rival="hand-written recipe",
            goal=Goal(1.05),
            unit="memory",
            ours=ours,
            theirs=theirs,
            floor=floor,
            floor_is="Flask, Flask-SQLAlchemy and psycopg",
        )
    ]


def _run(*arguments: str, given: str = "") -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def _import_profile() -> str:
    """The modules that take longest by themselves, of those that the package brings in."""
    command = [sys.executable, "-X", "importtime", "-c", IMPORT]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    names = [line.rpartition("|")[2].strip() for line in lines]
    ours = lines[names.index("flask_sqlalchemy") + 1 :]
    own = sorted(ours, key=lambda line: -int(line.split(":")[1].split("|")[0]))
    return "\n".join([lines[0], *own[:25]])
