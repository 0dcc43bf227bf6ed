"""The recipes for Sentry and Prometheus: what each delivery reports and counts."""

from __future__ import annotations

import collections.abc as c
import json
import logging
import pathlib
import runpy
import subprocess
import sys
import typing as t

import prometheus_client
import pytest

from flask_sangho_webhooks import (
    delivery_rejected,
    Discard,
    Event,
    event_failed,
    RetryLater,
)

from .sentry_app import BODY_MARK
from .support import SECRET, Shop

PROJECT = pathlib.Path(__file__).parent.parent


def sentry(setup: str) -> dict[str, t.Any]:
    """What an app with Sentry reports, which changes the whole process that it is in."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.sentry_app", setup],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, t.Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def recipe() -> dict[str, t.Any]:
    return sentry("recipe")


def private(delivery: dict[str, t.Any]) -> set[str]:
    """What is in the reports of a delivery that should not be."""
    text = json.dumps(delivery["reported"])
    digest = delivery["signature"].partition("v1=")[2]
    words = {"secret": SECRET, "signature": digest, "body": BODY_MARK}
    return {name for name, word in words.items() if word in text}


def exceptions(delivery: dict[str, t.Any]) -> list[list[str]]:
    return [[e["type"] for e in r["exception"]["values"]] for r in delivery["reported"]]


def test_sentry_gets_the_exception_of_a_handler_once(recipe: dict[str, t.Any]) -> None:
    failed = recipe["failed"]

    assert (failed["status"], exceptions(failed)) == (500, [["ValueError"]])
    (report,) = failed["reported"]
    assert report["transaction"] == "sangho_webhooks.receive"
    assert report["tags"] == {
        "sangho.event_id": "evt_failed",
        "sangho.event_type": "payout.failed",
    }
    frames = report["exception"]["values"][0]["stacktrace"]["frames"]
    assert frames[-1]["function"] == "fail"


def test_sentry_gets_the_exception_of_a_callback_once(recipe: dict[str, t.Any]) -> None:
    assert recipe["callback"]["status"] == 200
    assert exceptions(recipe["callback"]) == [["LookupError"]]


def test_sentry_hears_of_a_body_that_is_gone(recipe: dict[str, t.Any]) -> None:
    (report,) = recipe["body gone"]["reported"]

    assert recipe["body gone"]["status"] == 500
    assert report["logentry"]["message"].startswith("The body of a delivery is not available")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("processed", 200),
        ("discarded", 200),
        ("rejected", 401),
        ("retry", 503),
        ("unavailable", 503),
    ],
)
def test_what_is_no_error_is_not_reported(recipe: dict[str, t.Any], name: str, status: int) -> None:
    assert (recipe[name]["status"], recipe[name]["reported"]) == (status, [])


def test_nothing_private_is_reported(recipe: dict[str, t.Any]) -> None:
    assert [private(delivery) for delivery in recipe.values()] == [set()] * len(recipe)


def test_breadcrumbs_tell_what_happened(recipe: dict[str, t.Any]) -> None:
    (report,) = recipe["failed"]["reported"]
    crumbs = [c for c in report["breadcrumbs"]["values"] if c["type"] == "log"]

    (crumb,) = [c for c in crumbs if c["category"] == "flask_sangho_webhooks"]
    assert crumb["data"].pop("duration_ms") > 0
    assert crumb["data"] == {
        "event_id": "evt_failed",
        "event_type": "payout.failed",
        "outcome": "failed",
    }


def test_what_the_recipe_turns_off() -> None:
    """By default, Sentry adds the body and all headers. If it does not any more, the recipe can be
    shorter.
    """
    defaults = sentry("defaults")

    assert exceptions(defaults["failed"]) == [["ValueError"]]
    assert private(defaults["failed"]) == {"signature", "body"}


# ------------------------------------------------------------------ Prometheus


@pytest.fixture
def metrics() -> c.Iterator[c.Callable[[str], dict[str, float]]]:
    """The recipe's metrics: values by labels."""
    logger = logging.getLogger("flask_sangho_webhooks")
    handlers, level = list(logger.handlers), logger.level
    recipe = runpy.run_module("tests.recipes.prometheus")
    metrics = [recipe[name] for name in ("OUTCOMES", "SECONDS", "FAILURES", "REJECTIONS")]

    def read(sample: str) -> dict[str, float]:
        samples = [s for metric in metrics for family in metric.collect() for s in family.samples]
        return {" ".join(s.labels.values()): s.value for s in samples if s.name == sample}

    yield read

    event_failed.disconnect(recipe["count_failure"])
    delivery_rejected.disconnect(recipe["count_rejection"])
    logger.handlers[:] = handlers
    logger.setLevel(level)

    for metric in metrics:
        prometheus_client.REGISTRY.unregister(metric)


def test_prometheus_counts(sqlite_shop: Shop, metrics: c.Callable[[str], dict[str, float]]) -> None:
    shop = sqlite_shop

    @shop.webhooks.on("payout.paid")
    def succeed(event: Event) -> None:
        shop.grant(event.id)

    @shop.webhooks.on("payout.failed")
    def fail(event: Event) -> None:
        raise ValueError

    @shop.webhooks.on("payout.created")
    def later(event: Event) -> None:
        raise RetryLater

    @shop.webhooks.on("refund.failed")
    def discard(event: Event) -> None:
        raise Discard

    for number, event_type in enumerate(
        ["payout.paid", "payout.paid", "payout.failed", "payout.created", "refund.failed"]
    ):
        shop.deliver(f"evt_{number}", event_type)

    shop.deliver("evt_0", "payout.paid")
    shop.deliver("evt_7", "customer.created")
    shop.deliver(secret="whsec_other")
    shop.post(b"[]")

    assert metrics("sangho_outcomes_total") == {
        "processed": 2,
        "failed": 1,
        "retry_later": 1,
        "discarded": 1,
        "duplicate": 1,
        "unhandled": 1,
        "mismatch": 1,
        "invalid_payload": 1,
    }
    assert metrics("sangho_failures_total") == {"payout.failed ValueError": 1}
    assert metrics("sangho_rejections_total") == {"mismatch": 1, "invalid_payload": 1}
    assert metrics("sangho_seconds_count") == {
        "payout.paid": 3,
        "payout.failed": 1,
        "payout.created": 1,
        "refund.failed": 1,
        "customer.created": 1,
    }
    assert all(0 < seconds < 5 for seconds in metrics("sangho_seconds_sum").values() if seconds)
    assert b'sangho_outcomes_total{outcome="processed"} 2.0' in prometheus_client.generate_latest()
