"""``flask sangho check``: configuration, routes and handlers; what it prints, and how it exits."""

from __future__ import annotations

import collections.abc as c
import datetime as dt
import json
import pathlib
import random
import re
import string
import subprocess
import typing as t

import pytest
from click.testing import Result
from flask import Blueprint, Flask
from flask_sqlalchemy import SQLAlchemy
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]

from flask_sangho_webhooks import ProcessedWebhookEventMixin, SanghoWebhooks, SQLGuard
from flask_sangho_webhooks.checks.configuration import check_secret
from flask_sangho_webhooks.findings import Finding

from .check_support import check, codes, finding, GOOD_SECRET, OTHER_SECRET, run_check
from .commands import environment, flask_command, SHOP, write_app
from .support import SECRET, Shop, TYPE

CONFIG = {"SANGHO_WEBHOOK_SECRET": GOOD_SECRET}


def make_shop(url: str, *, handled: bool = True, **config: t.Any) -> Shop:
    shop = Shop(url, config={**CONFIG, **config})

    if handled:
        shop.webhooks.on(TYPE)(lambda event: None)

    return shop.__enter__()


@pytest.fixture
def make(sqlite_url: str) -> c.Iterator[c.Callable[..., Shop]]:
    """Makes shops that are right but for some configuration."""
    shops = []

    def make(**options: t.Any) -> Shop:
        shops.append(make_shop(sqlite_url, **options))
        return shops[-1]

    yield make

    for shop in shops:
        shop.__exit__()


@pytest.fixture
def shop(make: c.Callable[..., Shop]) -> Shop:
    return make()


# --------------------------------------------------------------- a right setup


def test_nothing_is_wrong(shop: Shop) -> None:
    result = run_check(shop.app)

    assert (result.exit_code, result.output) == (
        0,
        "sangho_webhooks: Sangho posts to https://<your host>/webhook\nNothing is wrong.\n",
    )
    assert run_check(shop.app, "--strict").exit_code == 0
    assert check(shop.app) == []


def test_nothing_is_wrong_with_two_endpoints_csrf_and_a_rotation(make: t.Any) -> None:
    shop = make(
        SANGHO_WEBHOOK_SECRET=[OTHER_SECRET, GOOD_SECRET],
        SANGHO_CONNECT_SECRET=GOOD_SECRET[::-1].replace("_cesohw", "") + "7",
        SECRET_KEY="key",
        SANGHO_API_KEY="sk_test_1",
    )
    shop.app.config["SANGHO_CONNECT_SECRET"] = "whsec_" + "d41a90cc7be6528f"
    CSRFProtect(shop.app)
    add_endpoint(shop)

    assert check(shop.app) == []


def add_endpoint(shop: Shop, **options: t.Any) -> SanghoWebhooks:
    class ConnectEvent(ProcessedWebhookEventMixin, shop.db.Model):  # type: ignore[name-defined, misc]
        pass

    webhooks = SanghoWebhooks(
        shop.db,
        **{
            "name": "connect",
            "path": "/connect",
            "config_prefix": "SANGHO_CONNECT_",
            "model": ConnectEvent,
            **options,
        },
    )
    webhooks.on("account.updated")(lambda event: None)
    shop.app.register_blueprint(webhooks.blueprint)

    with shop.app.app_context():
        shop.db.create_all()

    return webhooks


# --------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "secret",
    [
        *("whsec_quickstart", "whsec_test", "whsec_example", "whsec_new", "changeme", "whsec_…"),
        *("whsec_your_signing_secret_here", "whsec_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "WHSEC_TEST"),
        *("<your-webhook-secret>", "whsec_test_1234567890123456", "whsec_secret"),
    ],
)
def test_secret_from_an_example(make: t.Any, secret: str) -> None:
    shop = make(SANGHO_WEBHOOK_SECRET=secret)
    result = run_check(shop.app)

    assert codes(shop.app)[0] == "secret-example"
    assert result.exit_code == 1
    assert "Sangho's dashboard" in result.output
    assert secret not in result.output.replace("whsec_…)", "")


@pytest.mark.parametrize(
    "secret",
    [
        *("whsec_9f8a7b6c5d4e3f2", "whsec_" + "ab12" * 10, SECRET),
        *("whsec_fedcba9876543210", "whsec_qq"),
    ],
)
def test_weak_secret(make: t.Any, secret: str) -> None:
    shop = make(SANGHO_WEBHOOK_SECRET=secret)

    assert codes(shop.app) == ["secret-weak"]
    assert secret not in run_check(shop.app).output


def test_each_secret_of_a_rotation_is_checked(make: t.Any) -> None:
    found = finding(make(SANGHO_WEBHOOK_SECRET=[GOOD_SECRET, "whsec_old"]).app, "secret-example")

    assert found["message"].startswith("Entry 1 of 'SANGHO_WEBHOOK_SECRET'")


def test_secret_without_its_prefix(make: t.Any) -> None:
    assert codes(make(SANGHO_WEBHOOK_SECRET=GOOD_SECRET[6:]).app) == ["secret-prefix"]


QUOTED = [f"'{GOOD_SECRET}'", f'"{GOOD_SECRET}"', f"{GOOD_SECRET}'"]


@pytest.mark.filterwarnings("ignore:'SANGHO_WEBHOOK_SECRET' has quotes")
@pytest.mark.parametrize("secret", QUOTED)
def test_secret_with_quotes(make: t.Any, secret: str) -> None:
    (found,) = check(make(SANGHO_WEBHOOK_SECRET=secret).app)

    assert (found["code"], found["level"]) == ("secret-format", "error")
    assert found["fix"].startswith("Remove the quotes")


@pytest.mark.filterwarnings("ignore:'SANGHO_WEBHOOK_SECRET' looks like a list")
def test_secret_that_is_a_list_in_text(make: t.Any) -> None:
    (found,) = check(make(SANGHO_WEBHOOK_SECRET=f"['{GOOD_SECRET}', '{OTHER_SECRET}']").app)

    assert (found["code"], found["level"]) == ("secret-format", "error")
    assert "as JSON" in found["fix"]


@pytest.mark.filterwarnings("ignore:'SANGHO_WEBHOOK_SECRET' has quotes")
def test_placeholder_in_quotes(make: t.Any) -> None:
    assert codes(make(SANGHO_WEBHOOK_SECRET="'whsec_test'").app) == [
        "secret-example",
        "secret-format",
    ]


def test_published_secrets_are_known() -> None:
    """Of the README, the documentation, the example shop and the package itself."""
    root = pathlib.Path(__file__).parent.parent
    files = [*root.glob("README*.md"), *root.glob("docs/*.md")]
    files += [*root.glob("example_app/**/*.py"), *root.glob("flask_sangho_webhooks/**/*.py")]
    published = {s for f in files for s in re.findall(r"whsec_\w+", f.read_text("utf-8"))}
    known = {
        s for s in published if [f.code for f in check_secret(s, "", "")] == ["secret-example"]
    }

    assert "whsec_example_shop_only" in published
    assert published - known == set()


def test_same_secret_twice(make: t.Any) -> None:
    assert codes(make(SANGHO_WEBHOOK_SECRET=[GOOD_SECRET] * 2).app) == ["secret-twice"]


def test_two_endpoints_with_one_secret(make: t.Any) -> None:
    shop = make(SANGHO_CONNECT_SECRET=GOOD_SECRET)
    add_endpoint(shop)
    (found,) = check(shop.app)

    assert (found["code"], found["endpoint"]) == ("secret-shared", None)


def test_no_random_secret_is_suspicious() -> None:
    """Of 20,000 each, as they are commonly made."""
    source = random.Random(20260729)

    for alphabet, length in (
        (string.hexdigits[:16], 32),
        (string.ascii_letters + "0123456789", 24),
    ):
        for _ in range(20_000):
            secret = "whsec_" + "".join(source.choices(alphabet, k=length))
            assert not list(check_secret(secret, "", "")), secret


# ------------------------------------------------------------ other configuration


def test_short_retention(make: t.Any) -> None:
    shop = make(SANGHO_WEBHOOK_RETENTION=dt.timedelta(hours=50))
    found = finding(shop.app, "retention-short")

    assert "kept for 50 hours" in found["message"]
    assert found["fix"] == ("app.config['SANGHO_WEBHOOK_RETENTION'] = datetime.timedelta(hours=72)")
    assert run_check(shop.app).exit_code == 0
    assert run_check(shop.app, "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("SANGHO_WEBHOOK_SECRETS", "SANGHO_WEBHOOK_SECRET"),
        ("SANGHO_WEBHOOK_MAXBODY", "SANGHO_WEBHOOK_MAX_BODY"),
        ("SANGHO_WEBHOOKS_RETENTION", "SANGHO_WEBHOOK_RETENTION"),
    ],
)
def test_misspelt_key(make: t.Any, key: str, nearest: str) -> None:
    found = finding(make(**{key: "x"}).app, "config-unknown")

    assert found["message"] == f"Nothing reads app.config[{key!r}]."
    assert found["fix"] == f"Did you mean {nearest!r}?"


def test_key_like_no_other(make: t.Any) -> None:
    found = finding(make(SANGHO_WEBHOOK_COLOUR="red").app, "config-unknown")

    assert "SANGHO_WEBHOOK_LOCK_TIMEOUT" in found["fix"]


def test_prefix_that_another_one_begins_with(make: t.Any) -> None:
    shop = make(SANGHO_WEBHOOK_CONNECT_SECRET=OTHER_SECRET)
    add_endpoint(shop, config_prefix="SANGHO_WEBHOOK_CONNECT_")

    assert check(shop.app) == []


# ---------------------------------------------------------------------- routes


def test_blueprint_that_is_not_registered(sqlite_url: str) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url)
    db.init_app(app)
    webhooks = SanghoWebhooks(db)
    webhooks.on(TYPE)(lambda event: None)
    webhooks.init_app(app)

    with app.app_context():
        db.create_all()

    result = run_check(app)

    assert codes(app) == ["not-registered"]
    assert result.exit_code == 0
    assert "fix: app.register_blueprint(webhooks.blueprint)" in result.output


@pytest.mark.parametrize(
    ("config", "variable", "url"),
    [
        ({}, "", "https://<your host>/pay/webhook"),
        ({"APPLICATION_ROOT": "/shop"}, "", "https://<your host>/shop/pay/webhook"),
        ({}, "/shop/", "https://<your host>/shop/pay/webhook"),
        ({"SERVER_NAME": "shop.test"}, "", "http://shop.test/pay/webhook"),
        (
            {"SERVER_NAME": "shop.test", "PREFERRED_URL_SCHEME": "https"},
            "",
            "https://shop.test/pay/webhook",
        ),
    ],
)
def test_url(
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
    config: dict[str, str],
    variable: str,
    url: str,
) -> None:
    monkeypatch.setenv("SCRIPT_NAME", variable)
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url, **config)
    db.init_app(app)
    webhooks = SanghoWebhooks(db)
    outer = Blueprint("outer", __name__, url_prefix="/pay")
    outer.register_blueprint(webhooks.blueprint)
    app.register_blueprint(outer)

    assert f"Sangho posts to {url}\n" in run_check(app).output
    assert json.loads(run_check(app, "--json").stdout)["endpoints"] == [
        {"name": "sangho_webhooks", "urls": [url]}
    ]


def test_two_urls(shop: Shop) -> None:
    shop.app.register_blueprint(shop.webhooks.blueprint, name="again", url_prefix="/again")

    assert "https://<your host>/again/webhook" in run_check(shop.app).output
    assert check(shop.app) == []


def test_blueprint_that_is_registered_twice(shop: Shop) -> None:
    shop.app.register_blueprint(shop.webhooks.blueprint, name="again")
    (found,) = check(shop.app)

    assert (found["code"], found["level"]) == ("registered-twice", "advice")
    assert found["fix"] == "Register it once."


def test_path_that_another_view_takes(sqlite_url: str) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url)
    app.add_url_rule("/webhook", "other", lambda: "", methods=["POST"])
    db.init_app(app)
    webhooks = SanghoWebhooks(db)
    app.register_blueprint(webhooks.blueprint)

    assert finding(app, "path-taken")["message"] == (
        "Another view of the app, 'other', takes deliveries to '/webhook'."
    )


def test_path_that_is_redirected(sqlite_url: str) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url)
    app.add_url_rule("/webhook", "old", redirect_to="/new", methods=["POST"])
    db.init_app(app)
    app.register_blueprint(SanghoWebhooks(db).blueprint)

    assert finding(app, "path-taken")["message"] == (
        "A redirect or an error takes deliveries to '/webhook'."
    )


class UnknownCSRF(CSRFProtect):  # type: ignore[misc]
    """As if another version of Flask-WTF kept what is exempt in another way."""

    def __init__(self, app: Flask) -> None:
        super().__init__(app)
        self._exempt_views: frozenset[str] = frozenset()


def test_csrf_protection_that_is_not_known(shop: Shop) -> None:
    shop.app.config["SECRET_KEY"] = "key"
    csrf = UnknownCSRF(shop.app)

    assert finding(shop.app, "csrf")["fix"] == "csrf.exempt(webhooks.blueprint)"
    assert b"CSRF" in shop.deliver(secret=GOOD_SECRET).data

    csrf.exempt(shop.webhooks.blueprint)

    assert shop.deliver(secret=GOOD_SECRET).json == {"received": True}
    assert check(shop.app) == []


def test_csrf_protection_that_is_switched_off(shop: Shop) -> None:
    shop.app.config.update(SECRET_KEY="key", WTF_CSRF_ENABLED=False)
    UnknownCSRF(shop.app)

    assert check(shop.app) == []


def test_max_content_length_is_advice_because_it_does_no_harm(make: t.Any) -> None:
    shop = make(MAX_CONTENT_LENGTH=1000)
    found = finding(shop.app, "max-content-length")

    assert shop.deliver(secret=GOOD_SECRET, note="x" * 5000).json == {"received": True}
    assert found["level"] == "advice"
    assert "client_max_body_size 1048576;" in found["fix"]
    assert run_check(shop.app, "--strict").exit_code == 0


# -------------------------------------------------------------------- handlers


def test_no_handlers(make: t.Any) -> None:
    shop = make(handled=False)

    assert codes(shop.app) == ["no-handlers"]
    assert run_check(shop.app).exit_code == 1


@pytest.mark.filterwarnings("ignore:Sangho is not known")
def test_handler_for_an_unknown_type(shop: Shop) -> None:
    shop.webhooks.on("payment.suceeded", "invoice.*")(lambda event: None)
    shop.webhooks.on("warehouse.burnt")(lambda event: None)

    assert [(f["code"], f["fix"]) for f in check(shop.app)] == [
        ("type-unknown", "Did you mean 'payment.succeeded'?"),
        ("type-unknown", "Look the type up in Sangho's dashboard."),
    ]


# ------------------------------------------------------- guards of a user's own


class Ledger(SQLGuard):
    def check(self, prefix: str) -> list[Finding]:
        return [Finding("ledger-full", "warning", "The ledger is full.", f"{prefix}LEDGER = …")]


def test_guard_that_checks_itself(sqlite_url: str) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url)
    db.init_app(app)
    webhooks = SanghoWebhooks(db, guard=Ledger(db))
    webhooks.on(TYPE)(lambda event: None)
    app.register_blueprint(webhooks.blueprint)

    assert check(app) == [
        {
            "code": "ledger-full",
            "level": "warning",
            "message": "The ledger is full.",
            "fix": "SANGHO_WEBHOOK_LEDGER = …",
            "endpoint": "sangho_webhooks",
        }
    ]


class Ids:
    """No more than the protocol asks for."""

    def __init__(self, guard: SQLGuard) -> None:
        self.once = guard.once
        self.seen = guard.seen
        self.forget = guard.forget
        self.cleanup = guard.cleanup


def test_guard_that_does_not(sqlite_url: str) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config.update(CONFIG, SQLALCHEMY_DATABASE_URI=sqlite_url)
    db.init_app(app)
    webhooks = SanghoWebhooks(db, guard=Ids(SQLGuard(db)))
    webhooks.on(TYPE)(lambda event: None)
    app.register_blueprint(webhooks.blueprint)

    assert check(app) == []


# ------------------------------------------------------------ what is not an app


def test_app_without_an_endpoint(tmp_path: pathlib.Path) -> None:
    source = SHOP.replace("    app.register_blueprint(webhooks.blueprint)\n", "")
    done = run_flask(tmp_path, source, "check")

    assert done.returncode == 1
    assert "error [no-endpoint] This app has no endpoint for Sangho's webhooks." in done.stdout
    assert "fix: app.register_blueprint(webhooks.blueprint)" in done.stdout

    done = run_flask(tmp_path, source, "cleanup")

    assert done.returncode == 1
    assert done.stderr.startswith("Error: This app has no endpoint for Sangho's webhooks: app.reg")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_app_that_does_not_start(tmp_path: pathlib.Path, options: tuple[str, ...]) -> None:
    done = run_flask(tmp_path, SHOP, "check", *options, FLASK_SANGHO_WEBHOOK_SECRET="whsec_")

    assert done.returncode == 1
    assert done.stderr == ""

    if options:
        (found,) = json.loads(done.stdout)["findings"]
        assert (found["code"], found["level"]) == ("config", "error")
    else:
        assert "error [config] The app does not start: 'SANGHO_WEBHOOK_SECRET' is empty" in (
            done.stdout
        )
        assert "fix:" not in done.stdout


def test_other_commands_of_an_app_that_does_not_start(tmp_path: pathlib.Path) -> None:
    done = run_flask(tmp_path, SHOP, "cleanup", FLASK_SANGHO_WEBHOOK_SECRET="whsec_")

    assert done.returncode == 1
    assert done.stderr.startswith("Error: 'SANGHO_WEBHOOK_SECRET' is empty.")


def test_misspelt_secret_of_an_app_that_does_not_start(tmp_path: pathlib.Path) -> None:
    source = SHOP.replace(
        "    db.init_app", "    del app.config['SANGHO_WEBHOOK_SECRET']\n    db.init_app"
    )
    done = run_flask(tmp_path, source, "check", FLASK_SANGHO_WEBHOOK_SECRETS=GOOD_SECRET)

    assert "'SANGHO_WEBHOOK_SECRET' is not set. ('SANGHO_WEBHOOK_SECRETS' is, and nothing" in (
        done.stdout
    )
    assert GOOD_SECRET not in done.stdout


def run_flask(
    folder: pathlib.Path, source: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        flask_command("sangho", *arguments),
        cwd=write_app(folder, source),
        env=environment("sqlite:///shop.sqlite3", **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )


# --------------------------------------------------------------- what is shown


def test_the_worst_comes_first(make: t.Any) -> None:
    shop = make(
        handled=False,
        MAX_CONTENT_LENGTH=1000,
        SANGHO_WEBHOOK_RETENTION=50 * 3600,
        SANGHO_WEBHOOK_SECRET="whsec_test",
    )
    output = run_check(shop.app).output

    assert codes(shop.app) == [
        *("secret-example", "no-handlers", "retention-short", "max-content-length")
    ]
    assert output.index("error [no-handlers]") < output.index("warning [retention-short]")
    assert output.endswith("\nFound: 2 errors, 1 warning, 1 advice.\n")


def test_json(make: t.Any) -> None:
    result: Result = run_check(make(handled=False).app, "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "ok": False,
        "endpoints": [{"name": "sangho_webhooks", "urls": ["https://<your host>/webhook"]}],
        "findings": [
            {
                "code": "no-handlers",
                "level": "error",
                "message": "There are no handlers: every event is answered 200 and forgotten.",
                "fix": "Import the module with the handlers,"
                " @webhooks.on('payment_intent.succeeded'), where the app is made.",
                "endpoint": "sangho_webhooks",
            }
        ],
    }


def test_one_endpoint_by_name(make: t.Any) -> None:
    shop = make(handled=False, SANGHO_CONNECT_SECRET="whsec_" + OTHER_SECRET[6:])
    add_endpoint(shop)

    assert check(shop.app, "--name", "connect") == []
    assert "error [no-handlers] sangho_webhooks: There are" in run_check(shop.app).output
    assert run_check(shop.app, "--name", "other").exit_code == 2


def test_help_teaches(shop: Shop) -> None:
    shown = " ".join(run_check(shop.app, "--help").output.split())

    for text in ("flask --app shop sangho check --json", "exit code is 1", "no secret is shown"):
        assert text in shown
