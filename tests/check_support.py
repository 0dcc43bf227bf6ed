"""What ``flask sangho check`` finds in an app."""

from __future__ import annotations

import json
import typing as t

from click.testing import Result
from flask import Flask

GOOD_SECRET = "whsec_7c1e09b24fd85a63e90b1d47f2a6c835"
OTHER_SECRET = "whsec_e02b6a91c4d7f3580a1be96d2c47f085"


def run_check(app: Flask, *options: str) -> Result:
    return app.test_cli_runner().invoke(args=["sangho", "check", *options])


def check(app: Flask, *options: str) -> list[dict[str, t.Any]]:
    """The findings."""
    result = run_check(app, "--json", *options)
    findings: list[dict[str, t.Any]] = json.loads(result.stdout)["findings"]
    assert result.exit_code == any(found["level"] == "error" for found in findings)
    return findings


def codes(app: Flask) -> list[str]:
    return [found["code"] for found in check(app)]


def finding(app: Flask, code: str) -> dict[str, t.Any]:
    """The one finding with a code."""
    (found,) = (f for f in check(app) if f["code"] == code)
    return found
