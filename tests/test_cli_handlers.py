"""``flask sangho handlers``: which function runs for what, and where it is written."""

from __future__ import annotations

import functools
import json
import typing as t

import pytest
from click.testing import Result

from flask_sangho_webhooks import Event, ProcessedWebhookEventMixin, SanghoWebhooks

from .support import SECRET, Shop


def run(shop: Shop, *arguments: str) -> Result:
    return shop.app.test_cli_runner().invoke(args=["sangho", "handlers", *arguments])


def listed(shop: Shop, *arguments: str) -> list[dict[str, t.Any]]:
    found: list[dict[str, t.Any]] = json.loads(run(shop, "--json", *arguments).stdout)
    return found


def fulfil(event: Event) -> None: ...


async def notify(event: Event) -> None: ...


def with_note(event: Event, note: str) -> None: ...


def wrapped(function: t.Callable[[Event], None]) -> t.Callable[[Event], None]:
    @functools.wraps(function)
    def wrapper(event: Event) -> None:
        function(event)

    return wrapper


class Ledger:
    def __call__(self, event: Event) -> None: ...

    def write(self, event: Event) -> None: ...


def line(function: t.Any) -> int:
    number: int = function.__code__.co_firstlineno
    return number


@pytest.fixture
def shop(sqlite_shop: Shop) -> Shop:
    on = sqlite_shop.webhooks.on
    on("payment.succeeded", "payment_intent.*")(fulfil)
    on("*")(notify)
    return sqlite_shop


def test_handlers_in_the_order_in_which_they_run(shop: Shop) -> None:
    assert listed(shop) == [
        {
            "endpoint": "sangho_webhooks",
            "patterns": ["payment.succeeded", "payment_intent.*"],
            "function": "tests.test_cli_handlers:fulfil",
            "source": f"tests/test_cli_handlers.py:{line(fulfil)}",
            "async": False,
        },
        {
            "endpoint": "sangho_webhooks",
            "patterns": ["*"],
            "function": "tests.test_cli_handlers:notify",
            "source": f"tests/test_cli_handlers.py:{line(notify)}",
            "async": True,
        },
    ]


def test_handlers_for_a_person(shop: Shop) -> None:
    first, second = run(shop).output.splitlines()

    assert first.split() == [
        *("payment.succeeded,", "payment_intent.*", "tests.test_cli_handlers:fulfil"),
        f"tests/test_cli_handlers.py:{line(fulfil)}",
    ]
    assert second.split() == [
        *("*", "tests.test_cli_handlers:notify"),
        *(f"tests/test_cli_handlers.py:{line(notify)}", "async"),
    ]
    assert first.index("tests.test") == second.index("tests.test")


def test_source_outside_of_the_working_directory_is_absolute(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any
) -> None:
    monkeypatch.chdir(tmp_path)

    assert listed(shop)[0]["source"] == f"{__file__}:{line(fulfil)}"


@pytest.mark.parametrize(
    ("function", "name", "written"),
    [
        (functools.partial(with_note, note="x"), "with_note", with_note),
        (wrapped(fulfil), "fulfil", fulfil),
        (Ledger().write, "Ledger.write", Ledger.write),
        (Ledger(), "Ledger", None),
        (lambda event: None, "<lambda>", None),
        (print, "print", ...),
    ],
    ids=["partial", "decorated", "method", "object", "lambda", "builtin"],
)
def test_other_functions_are_named_by_what_was_written(
    sqlite_shop: Shop, function: t.Any, name: str, written: t.Any
) -> None:
    sqlite_shop.webhooks.on("*")(function)
    (handler,) = listed(sqlite_shop)

    assert handler["function"].endswith(f":{name}")

    if written is ...:
        assert handler["source"] is None
    else:
        assert handler["source"].startswith("tests/test_cli_handlers.py:")

    if written not in (None, ...):
        assert handler["source"].endswith(f":{line(written)}")


def functions(shop: Shop, event_type: str) -> list[str]:
    return [handler["function"].partition(":")[2] for handler in listed(shop, event_type)]


def test_handlers_of_a_type(shop: Shop) -> None:
    assert functions(shop, "payment_intent.succeeded") == ["fulfil", "notify"]
    assert functions(shop, "payment.failed") == ["notify"]


def test_type_without_a_handler(sqlite_shop: Shop) -> None:
    sqlite_shop.webhooks.on("payment.succeeded")(fulfil)
    result = run(sqlite_shop, "payment.failed")

    assert result.exit_code == 0
    assert result.output == (
        "No handler runs for 'payment.failed'. Sangho's delivery is answered 200, and nothing is"
        " recorded.\n"
    )


def test_unknown_type_is_pointed_out(shop: Shop) -> None:
    result = run(shop, "payment.suceeded")

    assert "tests.test_cli_handlers:notify" in result.stdout
    assert "not known to send 'payment.suceeded'. Did you mean 'payment.succeeded'?" in (
        result.output
    )


@pytest.mark.parametrize("event_type", ["payment.*", "", "a b", "x" * 101])
def test_what_is_no_type_is_refused(shop: Shop, event_type: str) -> None:
    result = run(shop, event_type)

    assert result.exit_code == 2
    assert "is not the type of an event" in result.output


def test_no_handlers(sqlite_shop: Shop) -> None:
    assert "There are no handlers." in run(sqlite_shop).output
    assert listed(sqlite_shop) == []


def test_handlers_of_several_endpoints(shop: Shop) -> None:
    shop.app.config["SANGHO_CONNECT_SECRET"] = SECRET
    connect = SanghoWebhooks(
        shop.db,
        name="connect",
        config_prefix="SANGHO_CONNECT_",
        model=type("Other", (ProcessedWebhookEventMixin, shop.db.Model), {}),
    )
    connect.init_app(shop.app)
    connect.on("account.updated")(fulfil)

    assert [row.split()[0] for row in run(shop).output.splitlines()] == [
        *("sangho_webhooks", "sangho_webhooks", "connect")
    ]
    assert [h["endpoint"] for h in listed(shop, "--name", "connect")] == ["connect"]


def test_help_teaches(shop: Shop) -> None:
    shown = " ".join(run(shop, "--help").output.split())

    assert "flask --app shop sangho handlers payment_intent.succeeded" in shown
    assert "[TYPE]" in shown
