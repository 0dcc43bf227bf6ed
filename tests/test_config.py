"""Each key of the configuration: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing as t
import warnings

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import ConfigError, SanghoWebhooks
from flask_sangho_webhooks.config import Config
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET

PREFIX = "SANGHO_WEBHOOK_"
PRIVATE = "0123456789abcdef"


def load(prefix: str = PREFIX, **values: t.Any) -> Config:
    """The configuration of an app with these keys, a secret among them unless given."""
    config = {"SECRET": SECRET, **values}
    return Config.load({prefix + name: value for name, value in config.items()}, prefix)


def refusal(**values: t.Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**values)

    error = caught.value
    assert error.__suppress_context__ or error.__context__ is None
    assert PRIVATE not in str(error)
    return str(error)


def test_defaults() -> None:
    assert load() == Config(
        name="sangho_webhooks",
        secrets=(SECRET,),
        tolerance=300,
        retention=dt.timedelta(hours=72),
        max_body=1024 * 1024,
        retry_after=30,
        lock_timeout=2,
        redis_url="redis://localhost:6379/0",
        lease=300,
    )


def test_every_key_is_read() -> None:
    config = load(
        TOLERANCE=60.5,
        RETENTION=dt.timedelta(days=7),
        MAX_BODY=1,
        RETRY_AFTER=5,
        LOCK_TIMEOUT=0.25,
        REDIS_URL="rediss://cache:6380/1",
        LEASE=30,
    )

    assert config == Config(
        name="sangho_webhooks",
        secrets=(SECRET,),
        tolerance=60.5,
        retention=dt.timedelta(days=7),
        max_body=1,
        retry_after=5,
        lock_timeout=0.25,
        redis_url="rediss://cache:6380/1",
        lease=30,
    )


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().tolerance = 1  # type: ignore[misc]


def test_repr_shows_no_secret_and_no_password() -> None:
    text = repr(load(REDIS_URL=f"redis://:{PRIVATE}@localhost"))

    assert "tolerance=300" in text
    assert PRIVATE not in text


# The secret.


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        (SECRET, (SECRET,)),
        ([SECRET], (SECRET,)),
        ([SECRET, "whsec_old"], (SECRET, "whsec_old")),
        ((SECRET, "whsec_old"), (SECRET, "whsec_old")),
        ("without-prefix", ("without-prefix",)),
        ("whsec_é", ("whsec_é",)),
    ],
)
def test_secret(value: object, secrets: tuple[str, ...]) -> None:
    assert load(SECRET=value).secrets == secrets


def test_missing_secret_says_where_to_find_one() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load({}, "SANGHO_CONNECT_")

    message = str(caught.value)
    assert "'SANGHO_CONNECT_SECRET' is not set" in message
    assert "dashboard" in message
    assert "FLASK_SANGHO_CONNECT_SECRET" in message


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FLASK_SANGHO_CONNECT_SECRET", "call app.config.from_prefixed_env()"),
        ("SANGHO_CONNECT_SECRET", "name it FLASK_SANGHO_CONNECT_SECRET, and call app.config"),
    ],
)
def test_secret_in_the_environment_that_nothing_reads(
    monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, SECRET)

    with pytest.raises(ConfigError) as caught:
        Config.load({}, "SANGHO_CONNECT_")

    assert f"The environment variable {variable} is set" in str(caught.value)
    assert message in str(caught.value)
    assert PRIVATE not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "is not set"),
        ("", "'SANGHO_WEBHOOK_SECRET' is empty"),
        ("  ", "is empty"),
        ("\n", "is empty"),
        ("whsec_", "is empty"),
        (" whsec_\n", "is empty"),
        ("whsec_ ", "is empty"),
        ([SECRET, ""], "Entry 1 of 'SANGHO_WEBHOOK_SECRET' is empty"),
        ([SECRET, "whsec_"], "Entry 1 of 'SANGHO_WEBHOOK_SECRET' is empty"),
        ([SECRET, None], "Entry 1 of 'SANGHO_WEBHOOK_SECRET' must be a string, not NoneType"),
        ([SECRET, [SECRET]], "must be a string, not list"),
        (b"", "must be a string, not bytes"),
        (SECRET.encode(), "must be a string, not bytes"),
        ([SECRET.encode()], "must be a string, not bytes"),
        (f"{SECRET}\ud800", "is not valid UTF-8"),
        ([], "must be a string or a list"),
        ((), "must be a string or a list"),
        ({SECRET}, "must be a string or a list"),
        ({SECRET: SECRET}, "must be a string or a list"),
        (int(PRIVATE, 16), "must be a string or a list"),
        (True, "must be a string or a list"),
    ],
)
def test_wrong_secret(value: object, message: str) -> None:
    text = refusal(SECRET=value)

    assert message in text
    assert ("Entry " in text) == (isinstance(value, list) and bool(value))
    assert "'SANGHO_WEBHOOK_SECRET'" in text
    assert str(int(PRIVATE, 16)) not in text


@pytest.mark.parametrize("value", [f"{SECRET}\n", f" {SECRET}", f"\t{SECRET}\r\n"])
def test_white_space_around_a_secret_is_stripped_with_one_warning(value: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load(SECRET=["whsec_new", value])

    assert config.secrets == ("whsec_new", SECRET)
    [warning] = caught
    text = str(warning.message)
    assert text.startswith("Entry 1 of 'SANGHO_WEBHOOK_SECRET' has white space around it")
    assert PRIVATE not in text


@pytest.mark.parametrize("secret", ['"whsec_a"', "'whsec_a'", "whsec_a'"])
def test_quotes_around_a_secret_are_kept_with_a_warning(secret: str) -> None:
    with pytest.warns(UserWarning, match="^'SANGHO_WEBHOOK_SECRET' has quotes .* Remove them"):
        assert load(SECRET=secret).secrets == (secret,)


@pytest.mark.parametrize("secret", ["whsec_a b", "['whsec_a', 'whsec_b']"])
def test_secret_that_looks_like_a_mistake_is_kept_with_a_warning(secret: str) -> None:
    with pytest.warns(UserWarning, match="written as JSON"):
        assert load(SECRET=secret).secrets == (secret,)


def test_longest_retention() -> None:
    assert "ten years" in refusal(RETENTION=dt.timedelta(days=3651))


# The numbers.


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "300", None, True, [300]])
@pytest.mark.parametrize(
    "name", ["TOLERANCE", "RETENTION", "MAX_BODY", "RETRY_AFTER", "LOCK_TIMEOUT", "LEASE"]
)
def test_wrong_number(name: str, value: object) -> None:
    text = refusal(**{name: value})

    assert f"'SANGHO_WEBHOOK_{name}' must be a " in text
    assert "greater than 0" in text
    assert text.endswith(f"not {value!r}.")


@pytest.mark.parametrize("name", ["MAX_BODY", "RETRY_AFTER"])
@pytest.mark.parametrize("value", [0.5, 30.0])
def test_number_that_must_be_whole(name: str, value: float) -> None:
    assert "must be a whole number greater than 0" in refusal(**{name: value})


@pytest.mark.parametrize("name", ["TOLERANCE", "MAX_BODY", "RETRY_AFTER", "LOCK_TIMEOUT", "LEASE"])
def test_timedelta_where_seconds_are_meant(name: str) -> None:
    assert f"'SANGHO_WEBHOOK_{name}' must be" in refusal(**{name: dt.timedelta(minutes=5)})


@pytest.mark.parametrize(
    ("value", "retention"),
    [
        (dt.timedelta(hours=48), dt.timedelta(hours=48)),
        (48 * 3600, dt.timedelta(hours=48)),
        (72 * 3600 + 0.5, dt.timedelta(hours=72, seconds=0.5)),
        (dt.timedelta(days=365), dt.timedelta(days=365)),
    ],
)
def test_retention(value: object, retention: dt.timedelta) -> None:
    assert load(RETENTION=value).retention == retention


@pytest.mark.parametrize(
    "value",
    [
        dt.timedelta(hours=48) - dt.timedelta.resolution,
        dt.timedelta(0),
        dt.timedelta(days=-3),
        48 * 3600 - 1,
        72,
    ],
)
def test_short_retention(value: object) -> None:
    text = refusal(RETENTION=value)

    assert "'SANGHO_WEBHOOK_RETENTION' must be at least 48 hours" in text
    assert "timedelta or seconds" in text


@pytest.mark.parametrize("value", [1e300, 10**400])
def test_endless_retention(value: float) -> None:
    assert "'SANGHO_WEBHOOK_RETENTION' is too long" in refusal(RETENTION=value)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h:1/2", "unix:///run/redis.sock?db=1"])
def test_redis_url(url: str) -> None:
    assert load(REDIS_URL=url).redis_url == url


@pytest.mark.parametrize("value", [None, "", 6379, f"http://:{PRIVATE}@h", "localhost:6379"])
def test_wrong_redis_url(value: object) -> None:
    assert "'SANGHO_WEBHOOK_REDIS_URL' must be a URL that starts with" in refusal(REDIS_URL=value)


def test_prefix_of_the_keys() -> None:
    assert load("SANGHO_CONNECT_", TOLERANCE=60).tolerance == 60

    with pytest.raises(ConfigError, match="'SANGHO_CONNECT_TOLERANCE'"):
        load("SANGHO_CONNECT_", TOLERANCE=0)


# In an app.


@pytest.fixture
def app(sqlite_url: str) -> Flask:
    app = Flask(__name__)
    app.config.update({"SQLALCHEMY_DATABASE_URI": sqlite_url, "SANGHO_WEBHOOK_SECRET": SECRET})
    return app


@pytest.fixture
def webhooks(app: Flask) -> SanghoWebhooks:
    db = SQLAlchemy()
    db.init_app(app)
    return SanghoWebhooks(db)


def config_of(webhooks: SanghoWebhooks, app: Flask) -> Config:
    with app.app_context():
        return webhooks.endpoint().config


def status_of_a_delivery(app: Flask, secret: str) -> int:
    """The answer to an event that no handler is registered for."""
    body = event_body()
    headers = {"Sangho-Signature": sign(body, secret)}
    return app.test_client().post("/webhook", data=body, headers=headers).status_code


def test_defaults_are_set_in_the_app(app: Flask, webhooks: SanghoWebhooks) -> None:
    app.config["SANGHO_WEBHOOK_TOLERANCE"] = 60
    webhooks.init_app(app)

    assert app.config.get_namespace(PREFIX, lowercase=False) == {
        "SECRET": SECRET,
        "TOLERANCE": 60,
        "RETENTION": dt.timedelta(hours=72),
        "MAX_BODY": 1024 * 1024,
        "RETRY_AFTER": 30,
        "LOCK_TIMEOUT": 2,
        "REDIS_URL": "redis://localhost:6379/0",
        "LEASE": 300,
    }


def test_keys_are_read_once(app: Flask, webhooks: SanghoWebhooks) -> None:
    secrets = app.config["SANGHO_WEBHOOK_SECRET"] = [SECRET]
    webhooks.init_app(app)
    secrets.append("whsec_later")
    app.config["SANGHO_WEBHOOK_TOLERANCE"] = 60

    assert config_of(webhooks, app) == load()


@pytest.mark.parametrize(
    ("variable", "secrets"),
    [
        ("whsec_env", ("whsec_env",)),
        ('"whsec_env"', ("whsec_env",)),
        ('["whsec_env", "whsec_old"]', ("whsec_env", "whsec_old")),
    ],
)
def test_keys_from_the_environment(
    app: Flask,
    webhooks: SanghoWebhooks,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    secrets: tuple[str, ...],
) -> None:
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", variable)
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_TOLERANCE", "60")
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_RETENTION", "259200.5")
    app.config.from_prefixed_env()
    webhooks.init_app(app)

    config = config_of(webhooks, app)
    assert config.secrets == secrets
    assert config.tolerance == 60
    assert config.retention == dt.timedelta(hours=72, seconds=0.5)


def test_secret_from_the_environment_loses_its_line_break(
    app: Flask, webhooks: SanghoWebhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", "whsec_env\n")
    app.config.from_prefixed_env()

    with pytest.warns(UserWarning, match="white space"):
        webhooks.init_app(app)

    assert config_of(webhooks, app).secrets == ("whsec_env",)


@pytest.mark.parametrize("variable", ["", "null", "[]", '[""]', "[null]", "{}"])
def test_unusable_secret_from_the_environment(
    app: Flask, webhooks: SanghoWebhooks, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("FLASK_SANGHO_WEBHOOK_SECRET", variable)
    app.config.from_prefixed_env()

    with pytest.raises(ConfigError, match="SANGHO_WEBHOOK_SECRET"):
        webhooks.init_app(app)


@pytest.mark.parametrize("debug", [True, False])
def test_no_mode_does_without_a_secret(app: Flask, webhooks: SanghoWebhooks, debug: bool) -> None:
    app.config.update(SANGHO_WEBHOOK_SECRET=None, DEBUG=debug, TESTING=debug)

    with pytest.raises(ConfigError, match="is not set"):
        app.register_blueprint(webhooks.blueprint)


def test_neither_database_nor_guard(app: Flask) -> None:
    with pytest.raises(ConfigError, match=r"Pass the app's database, SanghoWebhooks\(db\)"):
        SanghoWebhooks().init_app(app)


WRONG = [("SECRET", ""), ("TOLERANCE", 0), ("RETENTION", dt.timedelta(hours=1)), ("MAX_BODY", "1M")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_failed_configuration_registers_nothing(
    app: Flask, webhooks: SanghoWebhooks, name: str, value: object
) -> None:
    before = set(app.extensions), set(app.cli.commands), [*app.url_map.iter_rules()]
    app.config[PREFIX + name] = value

    with pytest.raises(ConfigError, match=PREFIX + name):
        app.register_blueprint(webhooks.blueprint)

    assert (set(app.extensions), set(app.cli.commands), [*app.url_map.iter_rules()]) == before
    assert app.blueprints == {}
    assert not webhooks.is_initialized(app)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_failed_configuration_can_be_repeated_when_corrected(
    app: Flask, webhooks: SanghoWebhooks, name: str, value: object
) -> None:
    right = {PREFIX + name: app.config.get(PREFIX + name, 72 * 3600)}
    app.config[PREFIX + name] = value

    with pytest.raises(ConfigError):
        app.register_blueprint(webhooks.blueprint)

    app.config.update(right)
    app.register_blueprint(webhooks.blueprint)

    assert status_of_a_delivery(app, SECRET) == 200


def test_new_configuration_takes_effect_with_init_app(app: Flask, webhooks: SanghoWebhooks) -> None:
    app.register_blueprint(webhooks.blueprint)
    app.config["SANGHO_WEBHOOK_SECRET"] = "whsec_next"
    assert status_of_a_delivery(app, "whsec_next") == 401

    webhooks.init_app(app)
    assert status_of_a_delivery(app, "whsec_next") == 200


def test_configuration_in_force_survives_a_failed_change(
    app: Flask, webhooks: SanghoWebhooks
) -> None:
    app.register_blueprint(webhooks.blueprint)
    app.config["SANGHO_WEBHOOK_SECRET"] = ""

    with pytest.raises(ConfigError):
        webhooks.init_app(app)

    assert status_of_a_delivery(app, SECRET) == 200
