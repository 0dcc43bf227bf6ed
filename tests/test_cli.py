"""``flask sangho cleanup``: what it accepts, what it says, and when it deletes nothing."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import ProcessedWebhookEventMixin, SanghoWebhooks

from .commands import environment, flask, flask_command, write_app
from .records import insert
from .support import SECRET, Shop


def cleanup(shop: Shop, *options: str) -> Result:
    return shop.app.test_cli_runner().invoke(args=["sangho", "cleanup", *options])


@pytest.fixture
def shop(sqlite_shop: Shop) -> Shop:
    """A shop with one record that is 60 hours old, and one that is 90 hours old."""
    insert(sqlite_shop, {"evt_60": 60, "evt_90": 90})
    return sqlite_shop


def test_default_is_the_guides_retention(shop: Shop) -> None:
    result = cleanup(shop)

    assert (result.exit_code, result.output) == (0, "Deleted 1 record older than 72 hours.\n")
    assert shop.recorded() == ["evt_60"]


def test_default_is_the_configured_retention(sqlite_url: str) -> None:
    config = {"SANGHO_WEBHOOK_RETENTION": dt.timedelta(days=5)}

    with Shop(sqlite_url, config=config) as shop:
        insert(shop, {"evt_119": 119, "evt_121": 121})

        assert cleanup(shop).output == "Deleted 1 record older than 120 hours.\n"
        assert shop.recorded() == ["evt_119"]


def test_older_than(shop: Shop) -> None:
    assert cleanup(shop, "--older-than", "48.5").output == (
        "Deleted 2 records older than 48.5 hours.\n"
    )
    assert shop.recorded() == []


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("hours", ["-1", "0", "nan", "inf", "-inf", "1e9", "soon", "", "0.5"])
def test_what_is_no_number_of_hours_is_refused(shop: Shop, hours: str, force: list[str]) -> None:
    result = cleanup(shop, "--older-than", hours, *force)

    assert result.exit_code == 2
    assert "Invalid value for '--older-than'" in result.output
    assert shop.recorded() == ["evt_60", "evt_90"]


def test_less_than_48_hours_is_refused(shop: Shop) -> None:
    result = cleanup(shop, "--older-than", "47")

    assert result.exit_code == 2
    assert "redelivers an event for up to 48 hours" in result.output
    assert "--force" in result.output
    assert shop.recorded() == ["evt_60", "evt_90"]


def test_less_than_48_hours_can_be_forced(shop: Shop) -> None:
    result = cleanup(shop, "--older-than", "1", "--force")

    assert (result.exit_code, result.output) == (0, "Deleted 2 records older than 1 hours.\n")
    assert shop.recorded() == []


def test_48_hours_need_no_force(shop: Shop) -> None:
    assert cleanup(shop, "--older-than", "48").exit_code == 0


def test_dry_run_deletes_nothing(shop: Shop) -> None:
    result = cleanup(shop, "--dry-run")

    assert result.output == "Would delete 1 record older than 72 hours.\n"
    assert shop.recorded() == ["evt_60", "evt_90"]


def test_batch_size(shop: Shop) -> None:
    assert cleanup(shop, "--older-than", "48", "--batch-size", "1").output == (
        "Deleted 2 records older than 48 hours.\n"
    )


@pytest.mark.parametrize("size", ["0", "-1", "100001", "many"])
def test_unusable_batch_size_is_refused(shop: Shop, size: str) -> None:
    result = cleanup(shop, "--batch-size", size)

    assert result.exit_code == 2
    assert "Invalid value for '--batch-size'" in result.output
    assert shop.recorded() == ["evt_60", "evt_90"]


# ---------------------------------------------------------- several endpoints


@pytest.fixture
def two_endpoints(sqlite_url: str) -> c.Iterator[Shop]:
    """A shop with a second endpoint ``connect`` that keeps records for 60 hours."""
    config = {
        "SANGHO_CONNECT_SECRET": SECRET,
        "SANGHO_CONNECT_RETENTION": dt.timedelta(hours=60),
    }
    shop = Shop(sqlite_url, config=config)

    class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        pass

    connect = SanghoWebhooks(
        shop.db, name="connect", config_prefix="SANGHO_CONNECT_", model=ConnectEvent
    )
    connect.init_app(shop.app)

    with shop:
        insert(shop, {"evt_90": 90})
        yield shop


def test_every_endpoint_is_cleaned_up_with_its_own_retention(two_endpoints: Shop) -> None:
    assert cleanup(two_endpoints).output == (
        "Deleted 1 record of 'sangho_webhooks' older than 72 hours.\n"
        "Deleted 0 records of 'connect' older than 60 hours.\n"
    )


def test_one_endpoint_by_name(two_endpoints: Shop) -> None:
    assert cleanup(two_endpoints, "--name", "connect").output == (
        "Deleted 0 records older than 60 hours.\n"
    )
    assert two_endpoints.recorded() == ["evt_90"]


def test_unknown_name_is_refused(two_endpoints: Shop) -> None:
    result = cleanup(two_endpoints, "--name", "conect")

    assert result.exit_code == 2
    assert "No endpoint is named 'conect'; there is connect, sangho_webhooks." in result.output
    assert two_endpoints.recorded() == ["evt_90"]


# ------------------------------------------------------------------- troubles


def test_missing_table_is_explained(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    result = cleanup(shop)
    shop.__exit__()

    assert result.exit_code == 1
    assert "does not exist. Create it with 'flask sangho upgrade'" in result.output


@pytest.mark.parametrize("command", ["cleanup", "upgrade"])
def test_unreachable_database_is_explained(command: str) -> None:
    shop = Shop("postgresql+psycopg://nobody@127.0.0.1:9/nothing")
    result = shop.app.test_cli_runner().invoke(args=["sangho", command])
    shop.__exit__()

    assert result.exit_code == 1
    assert "The database is unreachable or locked" in result.output


@pytest.mark.parametrize("command", ["cleanup", "events", "upgrade"])
def test_file_that_cannot_be_opened_is_explained(command: str) -> None:
    shop = Shop("sqlite:////nowhere/at/all.sqlite3")
    result = shop.app.test_cli_runner().invoke(args=["sangho", command])
    shop.__exit__()

    assert result.exit_code == 1
    assert "correct SQLALCHEMY_DATABASE_URI" in result.output


COMMANDS = [["cleanup"], ["events"], ["forget", "evt_1", "--yes"], ["upgrade"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_forgotten_init_app_of_the_database_is_explained(
    sqlite_url: str, command: list[str]
) -> None:
    app = Flask(__name__)
    app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
    app.register_blueprint(SanghoWebhooks(SQLAlchemy()).blueprint)
    result = app.test_cli_runner().invoke(args=["sangho", *command])

    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert result.output.startswith("Error: The app does not have the endpoint's database")
    assert "db.init_app(app)" in result.output


def test_line_for_a_crontab_works(shop: Shop, tmp_path: pathlib.Path) -> None:
    shown = shop.app.test_cli_runner().invoke(args=["sangho", "cleanup", "--help"]).output
    (line,) = (line for line in shown.splitlines() if "17 * * * *" in line)
    names = ("FLASK_SQLALCHEMY_DATABASE_URI", "FLASK_SANGHO_WEBHOOK_SECRET")
    variables = environment(shop.url)
    folder = write_app(tmp_path)
    (folder / "env").write_text("".join(f"export {n}={variables[n]}\n" for n in names))
    (folder / ".venv" / "bin").mkdir(parents=True)
    script = folder / ".venv" / "bin" / "flask"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m flask "$@"\n')
    script.chmod(0o755)
    command = line.replace("17 * * * *", "").replace("/srv/shop", str(folder))
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PATH": "/usr/bin:/bin", "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, "Deleted 1 record older than 72 hours.\n"), done


def test_an_app_that_serves_requests_imports_no_command(tmp_path: pathlib.Path) -> None:
    code = "import sys, shop; shop.create_app(); print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=write_app(tmp_path),
        env=environment("sqlite://"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    commands = {name for name in done.stdout.split() if ".cli." in name}

    assert "flask_sangho_webhooks.cli" in done.stdout
    assert commands == set()


# -------------------------------------------------------------- what is shown


def test_no_progress_bar_without_a_terminal(shop: Shop, tmp_path: pathlib.Path) -> None:
    done = flask(write_app(tmp_path), shop.url, "sangho", "cleanup")

    assert (done.stdout, done.stderr) == ("Deleted 1 record older than 72 hours.\n", "")


def test_progress_bar_on_a_terminal(shop: Shop, tmp_path: pathlib.Path) -> None:
    terminal, end = os.openpty()
    done = subprocess.run(
        flask_command("sangho", "cleanup"),
        cwd=write_app(tmp_path),
        env=environment(shop.url, TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=end,
        timeout=60,
    )
    os.close(end)
    shown = os.read(terminal, 10_000)
    os.close(terminal)

    assert done.stdout == b"Deleted 1 record older than 72 hours.\n"
    assert b"100%" in shown


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ([], ["cleanup", "upgrade"]),
        (
            ["cleanup"],
            [
                "48 hours",
                "SANGHO_WEBHOOK_RETENTION",
                "17 * * * *  cd /srv/shop && . ./env && .venv/bin/flask --app shop sangho cleanup",
                "A job of cron has neither the environment",
            ],
        ),
        (["upgrade"], ["sangho_alembic_version", "by hand", "flask db migrate"]),
    ],
    ids=["sangho", "cleanup", "upgrade"],
)
def test_help_teaches(sqlite_shop: Shop, command: list[str], texts: list[str]) -> None:
    shown = sqlite_shop.app.test_cli_runner().invoke(args=["sangho", *command, "--help"]).output

    for text in texts:
        assert text in " ".join(shown.split()) or text in shown
