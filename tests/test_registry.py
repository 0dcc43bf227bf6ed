"""Which handlers run for which event type, and how often."""

from __future__ import annotations

import collections.abc as c
import functools
import importlib.util
import inspect
import pathlib
import sys
import textwrap
import types
import typing as t
import warnings

import pytest

from flask_sangho_webhooks import ConfigError, Event, SanghoWebhooks
from flask_sangho_webhooks.event_types import KNOWN_TYPES
from flask_sangho_webhooks.registry import (
    Handler,
    HandlerFunction,
    is_async,
    MAX_MATCHING,
    Registry,
    suggestion,
)

from .support import Shop, TYPE


def nothing(event: Event) -> None:
    """A handler without effects."""


def lineno() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.fixture
def webhooks() -> SanghoWebhooks:
    return SanghoWebhooks()


def registered(webhooks: SanghoWebhooks, event_type: str = TYPE) -> list[HandlerFunction]:
    """The functions that run for an event of the type."""
    return [handler.function for handler in webhooks.handlers if handler.matches(event_type)]


@pytest.mark.parametrize(
    ("pattern", "event_type", "matches"),
    [
        ("payment_intent.succeeded", "payment_intent.succeeded", True),
        ("payment_intent.succeeded", "payment_intent.succeeded.late", False),
        ("payment_intent.succeeded", "payment_intent.Succeeded", False),
        ("payment_intent.*", "payment_intent.succeeded", True),
        ("payment_intent.*", "payment_intent.succeeded.late", True),
        ("payment_intent.*", "payment_intent", False),
        ("payment_intent.*", "payment_intent.", False),
        ("payment_intent.*", "payment_intents.succeeded", False),
        ("payment.*", "payment_intent.succeeded", False),
        ("checkout.*", "checkout.session.completed", True),
        ("checkout.session.*", "checkout.session.completed", True),
        ("*", "payment_intent.succeeded", True),
        ("*", "anything", True),
    ],
)
def test_pattern(pattern: str, event_type: str, matches: bool) -> None:
    assert Handler(nothing, [pattern]).matches(event_type) is matches


def test_handlers_run_in_the_order_of_their_registration(sqlite_shop: Shop) -> None:
    ran: list[str] = []

    @sqlite_shop.webhooks.on("*")
    def first(event: Event) -> None:
        ran.append("first")

    @sqlite_shop.webhooks.on("kyc.updated")
    def unrelated(event: Event) -> None:
        ran.append("unrelated")

    @sqlite_shop.webhooks.on(TYPE)
    def second(event: Event) -> None:
        ran.append("second")

    @sqlite_shop.webhooks.on("payment_intent.*")
    def third(event: Event) -> None:
        ran.append("third")

    assert sqlite_shop.deliver().status_code == 200
    assert ran == ["first", "second", "third"]


def test_decorator_returns_the_function(webhooks: SanghoWebhooks) -> None:
    assert webhooks.on(TYPE)(nothing) is nothing


def test_handler_is_registered_without_an_app(webhooks: SanghoWebhooks) -> None:
    webhooks.on("kyc.updated", "payout.*", "kyc.updated")(nothing)

    [handler] = webhooks.handlers
    assert handler.function is nothing
    assert handler.patterns == ["kyc.updated", "payout.*"]


def test_handlers_cannot_be_changed_from_outside(webhooks: SanghoWebhooks) -> None:
    assert isinstance(webhooks.handlers, tuple)


@pytest.mark.parametrize("pattern", [*KNOWN_TYPES, "payment_intent.*", "checkout.*", "*"])
def test_known_pattern_warns_of_nothing(webhooks: SanghoWebhooks, pattern: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        webhooks.on(pattern)(nothing)

    assert caught == []


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("payment_intent.suceeded", "Did you mean 'payment_intent.succeeded'?"),
        ("paymentintent.succeeded", "Did you mean 'payment_intent.succeeded'?"),
        ("Payout.paid", "Did you mean 'payout.paid'?"),
        (" kyc.updated", "Did you mean 'kyc.updated'?"),
        ("payment_intents.*", "Did you mean 'payment_intent.*'?"),
        ("checkout.sessions.*", "Did you mean 'checkout.session.*'?"),
        ("zzz", "The handler runs if it does."),
    ],
)
def test_unknown_pattern_warns_on_the_line_of_the_decorator(
    webhooks: SanghoWebhooks, pattern: str, hint: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = lineno() + 2

        @webhooks.on(pattern)
        def handler(event: Event) -> None: ...

    [warning] = caught
    assert str(warning.message) == f"Sangho is not known to send {pattern!r}. {hint}"
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert registered(webhooks, pattern.replace("*", "x")) == [handler]


def test_suggestion() -> None:
    assert suggestion("xyz") == ""
    assert suggestion("payment_intents.*") == " Did you mean 'payment_intent.*'?"
    assert suggestion("payout", with_prefixes=False) == " Did you mean 'payout.paid'?"


@pytest.mark.parametrize(
    "pattern",
    ["", ".*", "**", "pay*", "payment.**", "payment*.paid", "*.succeeded", "*.*", "a.*.b", "a.*.*"],
)
def test_pattern_that_matches_no_event_is_refused(webhooks: SanghoWebhooks, pattern: str) -> None:
    with pytest.raises(ConfigError, match="matches no event") as caught:
        webhooks.on(TYPE, pattern)(nothing)

    assert repr(pattern) in str(caught.value)
    assert webhooks.handlers == ()


def test_decorator_without_patterns_is_refused(webhooks: SanghoWebhooks) -> None:
    with pytest.raises(ConfigError, match="Name what to handle"):
        webhooks.on()


def test_decorator_without_parentheses_is_refused(webhooks: SanghoWebhooks) -> None:
    with pytest.raises(ConfigError, match="with a type in parentheses"):
        webhooks.on(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [None, "fulfil", 5])
def test_handler_that_cannot_be_called_is_refused(
    webhooks: SanghoWebhooks, function: t.Any
) -> None:
    with pytest.raises(ConfigError, match="must be callable"):
        webhooks.on(TYPE)(function)

    assert webhooks.handlers == ()


# One function runs once an event, however often it is registered.


def test_stacked_decorators_run_the_handler_once(sqlite_shop: Shop) -> None:
    ran: list[str] = []

    @sqlite_shop.webhooks.on("payment_intent.*")
    @sqlite_shop.webhooks.on("kyc.updated")
    @sqlite_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        ran.append(event.type)

    sqlite_shop.deliver("evt_1", TYPE)
    sqlite_shop.deliver("evt_2", "kyc.updated")

    assert ran == [TYPE, "kyc.updated"]
    [registration] = sqlite_shop.webhooks.handlers
    assert registration.patterns == [TYPE, "kyc.updated", "payment_intent.*"]


def import_file(path: pathlib.Path, name: str, webhooks: SanghoWebhooks) -> types.ModuleType:
    """Run a file as the module of that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["webhooks"] = webhooks
    spec.loader.exec_module(module)
    return module


def reload(module: types.ModuleType) -> None:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


HANDLER_FILES = {
    "plain function": """
        @webhooks.on("payment_intent.succeeded")
        def handler(event): ...
        """,
    "async function": """
        @webhooks.on("payment_intent.succeeded")
        async def handler(event): ...
        """,
    "default argument": """
        @webhooks.on("payment_intent.succeeded")
        def handler(event, retries=1000, *, currency="XAF"): ...
        """,
    "decorated function": """
        import functools

        def retrying(times):
            def decorate(function):
                @functools.wraps(function)
                def wrapper(event):
                    for _ in range(times):
                        function(event)
                return wrapper
            return decorate

        @webhooks.on("payment_intent.succeeded")
        @retrying(times=1000)
        def handler(event): ...
        """,
}


@pytest.mark.parametrize("source", HANDLER_FILES.values(), ids=HANDLER_FILES.keys())
@pytest.mark.parametrize("again", ["under another name", "reloaded"])
def test_module_that_runs_twice_registers_its_handler_once(
    webhooks: SanghoWebhooks, tmp_path: pathlib.Path, source: str, again: str
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(textwrap.dedent(source))
    module = import_file(path, "handlers", webhooks)

    if again == "reloaded":
        reload(module)
    else:
        module = import_file(path, "shop.handlers", webhooks)

    assert registered(webhooks) == [module.handler]
    assert webhooks.handlers[0].patterns == [TYPE]


def test_modules_of_equal_text_keep_their_own_handlers(
    webhooks: SanghoWebhooks, tmp_path: pathlib.Path
) -> None:
    modules = []

    for name in ("stock", "mail"):
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(HANDLER_FILES["plain function"]))
        modules.append(import_file(path, name, webhooks))

    assert registered(webhooks) == [module.handler for module in modules]


def test_module_that_runs_twice_registers_each_of_its_handlers(
    webhooks: SanghoWebhooks, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(
        textwrap.dedent(
            """
            found = []

            @webhooks.on("payment_intent.succeeded")
            def _(event): ...
            found.append(_)

            @webhooks.on("payment_intent.succeeded")
            def _(event): ...
            found.append(_)
            """
        )
    )
    import_file(path, "handlers", webhooks)
    module = import_file(path, "shop.handlers", webhooks)

    assert registered(webhooks) == module.found


def closure_over_name(name: str, ran: list[str]) -> HandlerFunction:
    def handler(event: Event) -> None:
        ran.append(name)

    return handler


def default_argument(name: str, ran: list[str]) -> HandlerFunction:
    def handler(event: Event, name: str = name, ran: list[str] = ran) -> None:
        ran.append(name)

    return handler


def keyword_default(name: str, ran: list[str]) -> HandlerFunction:
    def handler(event: Event, *, name: str = name, ran: list[str] = ran) -> None:
        ran.append(name)

    return handler


def wrapper(name: str, ran: list[str]) -> HandlerFunction:
    @functools.wraps(nothing)
    def handler(event: Event) -> None:
        ran.append(name)

    return handler


def partial(name: str, ran: list[str]) -> HandlerFunction:
    def append(name: str, event: Event) -> None:
        ran.append(name)

    return functools.partial(append, name)


def callable_object(name: str, ran: list[str]) -> HandlerFunction:
    class Appender:
        def __call__(self, event: Event) -> None:
            ran.append(name)

    return Appender()


def bound_method(name: str, ran: list[str]) -> HandlerFunction:
    class Appender:
        def append(self, event: Event) -> None:
            ran.append(name)

    return Appender().append


@pytest.mark.parametrize(
    "make",
    [
        closure_over_name,
        default_argument,
        keyword_default,
        wrapper,
        partial,
        callable_object,
        bound_method,
    ],
)
def test_functions_made_in_a_loop_are_kept_apart(
    webhooks: SanghoWebhooks, make: c.Callable[[str, list[str]], HandlerFunction]
) -> None:
    ran: list[str] = []

    for name in ("stock", "mail", "ledger"):
        webhooks.on(TYPE)(make(name, ran))

    for function in registered(webhooks):
        function(Event(id="evt_1", type=TYPE))

    assert ran == ["stock", "mail", "ledger"]


def test_closures_over_objects_that_are_merely_equal_are_kept_apart(
    webhooks: SanghoWebhooks,
) -> None:
    first: list[str] = []
    second: list[str] = []
    webhooks.on(TYPE)(closure_over_name("stock", first))
    webhooks.on(TYPE)(closure_over_name("stock", second))

    for function in registered(webhooks):
        function(Event(id="evt_1", type=TYPE))

    assert first == second == ["stock"]


def test_closure_that_calls_itself_is_registered(webhooks: SanghoWebhooks) -> None:
    def make() -> HandlerFunction:
        def handler(event: Event) -> None:
            handler(event)

        return webhooks.on(TYPE)(handler)

    made = [make(), make()]

    assert registered(webhooks) == made


def test_one_function_under_two_wrappers_is_two_handlers(webhooks: SanghoWebhooks) -> None:
    def tagged(tag: str) -> HandlerFunction:
        @functools.wraps(nothing)
        def handler(event: Event) -> str:
            return tag

        return handler

    webhooks.on("payment_intent.succeeded")(tagged("payment"))
    webhooks.on("payout.paid")(tagged("payout"))
    event = Event(id="evt_1", type=TYPE)

    assert [function(event) for function in registered(webhooks, TYPE)] == ["payment"]
    assert [function(event) for function in registered(webhooks, "payout.paid")] == ["payout"]


@pytest.mark.parametrize("method", ["one", "other"])
def test_bound_method_registered_again_runs_once(webhooks: SanghoWebhooks, method: str) -> None:
    class Orders:
        def one(self, event: Event) -> None: ...

        def other(self, event: Event) -> None: ...

    orders = Orders()
    webhooks.on(TYPE)(orders.one)
    webhooks.on("payment_intent.*")(getattr(orders, method))

    assert len(registered(webhooks)) == (1 if method == "one" else 2)


# Functions that need care: async ones, and those whose body would never run.


async def async_function(event: Event) -> None: ...


async def async_with_argument(argument: str, event: Event) -> None: ...


class AsyncCall:
    async def __call__(self, event: Event) -> None: ...


ASYNC = [
    pytest.param(async_function, id="function"),
    pytest.param(AsyncCall(), id="object"),
    pytest.param(AsyncCall().__call__, id="method"),
    pytest.param(functools.partial(async_with_argument, "x"), id="partial"),
    pytest.param(functools.partial(AsyncCall()), id="partial of an object"),
]


@pytest.mark.parametrize("function", ASYNC)
def test_async_handler_is_accepted(webhooks: SanghoWebhooks, function: HandlerFunction) -> None:
    webhooks.on(TYPE)(function)

    assert is_async(function)
    assert registered(webhooks) == [function]


@pytest.mark.parametrize("function", ASYNC)
def test_async_handler_without_asgiref_is_refused(
    webhooks: SanghoWebhooks, monkeypatch: pytest.MonkeyPatch, function: HandlerFunction
) -> None:
    monkeypatch.setitem(sys.modules, "asgiref", None)

    with pytest.raises(ConfigError) as caught:
        webhooks.on(TYPE)(function)

    assert 'pip install "flask-sangho-webhooks[async]"' in str(caught.value)
    assert webhooks.handlers == ()


def test_plain_handler_needs_no_asgiref(
    webhooks: SanghoWebhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asgiref", None)

    assert webhooks.on(TYPE)(nothing) is nothing


def generator(event: Event) -> c.Iterator[None]:
    yield


async def async_generator(event: Event) -> c.AsyncIterator[None]:
    yield


class GeneratorCall:
    def __call__(self, event: Event) -> c.Iterator[None]:
        yield


class AsyncGeneratorCall:
    async def __call__(self, event: Event) -> c.AsyncIterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    [
        generator,
        async_generator,
        functools.partial(generator),
        functools.partial(functools.partial(async_generator)),
        GeneratorCall(),
        AsyncGeneratorCall(),
        GeneratorCall().__call__,
        functools.partial(GeneratorCall()),
    ],
)
def test_generator_is_refused(webhooks: SanghoWebhooks, function: HandlerFunction) -> None:
    with pytest.raises(ConfigError, match="must not be a generator"):
        webhooks.on(TYPE)(function)

    assert webhooks.handlers == ()


def test_registry_matches_in_the_order_of_registration() -> None:
    registry = Registry()
    registry.add(nothing, ["*"])
    registry.add(async_function, [TYPE])

    assert functions(registry, TYPE) == [nothing, async_function]
    assert functions(registry, "kyc.updated") == [nothing]


def test_function_that_is_added_later_runs_for_a_type_that_was_seen_before() -> None:
    registry = Registry()
    registry.add(nothing, [TYPE])
    assert functions(registry, TYPE) == [nothing]

    registry.add(async_function, ["payment_intent.*"])
    assert functions(registry, TYPE) == [nothing, async_function]


def test_function_that_is_added_during_a_match_is_not_forgotten() -> None:
    registry = Registry()
    added: list[object] = []

    class Pattern(str):
        """One that is compared while another thread adds a function."""

        def __eq__(self, other: object) -> bool:
            if other == TYPE and not added:
                added.append(other)
                registry.add(async_function, [TYPE])

            return str(self) == other

        __hash__ = str.__hash__

    registry.add(nothing, [Pattern(TYPE)])
    registry.match(TYPE)

    assert functions(registry, TYPE) == [nothing, async_function]


def test_types_without_end_are_not_all_remembered() -> None:
    registry = Registry()
    registry.add(nothing, ["*"])

    for number in range(2 * MAX_MATCHING):
        assert functions(registry, f"some.type_{number}") == [nothing]

    assert len(registry._matching) == MAX_MATCHING


def functions(registry: Registry, event_type: str) -> list[HandlerFunction]:
    return [handler.function for handler in registry.match(event_type)]


def test_handler_that_takes_no_event_is_refused(webhooks: SanghoWebhooks) -> None:
    with pytest.raises(ConfigError, match="one argument"):
        webhooks.on(TYPE)(lambda: None)  # type: ignore[type-var]
