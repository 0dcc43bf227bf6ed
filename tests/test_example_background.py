"""The example shop with Redis as its memory, and a Celery worker for its handlers."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import redis
import sqlalchemy as sa

ROOT = pathlib.Path(__file__).parent.parent

DELIVER = """
import sys
from example_app import create_app
from flask_sangho_webhooks.testing import sign

body = sys.argv[1].encode()
headers = {"Sangho-Signature": sign(body, "whsec_example")}
print(create_app().test_client().post("/webhook", data=body, headers=headers).text.strip())
"""


def test_redis_and_celery(sqlite_url: str, valkey_url: str) -> None:
    environment = {
        **os.environ,
        "EXAMPLE_GUARD": "redis",
        "EXAMPLE_QUEUE": "celery",
        "FLASK_CELERY__broker_url": valkey_url,
        "FLASK_SANGHO_WEBHOOK_REDIS_URL": valkey_url,
        "FLASK_SANGHO_WEBHOOK_SECRET": "whsec_example",
        "FLASK_SQLALCHEMY_DATABASE_URI": sqlite_url,
    }
    event = {
        "id": "evt_1",
        "type": "payment_intent.succeeded",
        "data": {"object": {"metadata": {"order": "A-1001"}}},
    }

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("-m", "flask", "--app", "example_app", "open-shop")
    arguments = ["-m", "celery", "--app", "example_app.worker", "worker", "--pool", "solo"]
    worker = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    paid = sa.text("SELECT count(*) FROM grants WHERE event_id = 'evt_1'")

    try:
        assert json.loads(run("-c", DELIVER, json.dumps(event))) == {
            "received": True,
            "queued": True,
        }
        deadline = time.monotonic() + 30
        grants = 0

        with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
            while client.get("sangho:webhook:sangho_webhooks:evt_1") != "processed":
                assert time.monotonic() < deadline
                time.sleep(0.1)

        with engine.connect() as connection:
            grants = connection.execute(paid).scalar_one()

        assert grants == 1
        assert json.loads(run("-c", DELIVER, json.dumps(event)))["duplicate"]
    finally:
        worker.terminate()
        worker.wait(15)
