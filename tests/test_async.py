"""Handlers that are coroutines, and those that only look as if they were not."""

from __future__ import annotations

import asyncio
import collections.abc as c
import functools
import typing as t

import pytest
from flask import current_app, request

from flask_sangho_webhooks import ConfigError, Event, RetryLater

from .support import Shop, TYPE

Handler = c.Callable[[Event], object]


async def grant(shop: Shop, event: Event) -> None:
    """An effect after a real wait."""
    await asyncio.sleep(0)
    shop.grant(event.id)


class Granter:
    """An object whose call is async."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def __call__(self, event: Event) -> None:
        await grant(self.shop, event)

    async def method(self, event: Event) -> None:
        await grant(self.shop, event)

    async def with_note(self, note: str, event: Event) -> None:
        await grant(self.shop, event)


def plain(shop: Shop) -> Handler:
    async def handler(event: Event) -> None:
        await grant(shop, event)

    return handler


KINDS: dict[str, c.Callable[[Shop], Handler]] = {
    "function": plain,
    "partial": lambda shop: functools.partial(grant, shop),
    "object": Granter,
    "method": lambda shop: Granter(shop).method,
    "partial-of-object": lambda shop: functools.partial(Granter(shop)),
    "partial-of-method": lambda shop: functools.partial(Granter(shop).with_note, "x"),
    "partial-of-partial": lambda shop: functools.partial(functools.partial(grant), shop),
}


@pytest.mark.parametrize("kind", KINDS)
def test_coroutine_runs_and_commits_with_the_claim(sqlite_shop: Shop, kind: str) -> None:
    sqlite_shop.webhooks.on(TYPE)(KINDS[kind](sqlite_shop))

    assert sqlite_shop.deliver().json == {"received": True}
    assert sqlite_shop.deliver().json == {"received": True, "duplicate": True}
    assert sqlite_shop.grants() == ["evt_1"]
    assert sqlite_shop.recorded() == ["evt_1"]


def test_coroutine_that_fails_rolls_back(shop: Shop) -> None:
    tries: list[str] = []

    @shop.webhooks.on(TYPE)
    async def fails_once(event: Event) -> None:
        await grant(shop, event)
        shop.db.session.commit()
        tries.append(event.id)

        if len(tries) == 1:
            raise ValueError

    assert shop.deliver().status_code == 500
    assert (shop.grants(), shop.recorded()) == ([], [])
    assert shop.deliver().json == {"received": True}
    assert shop.grants() == ["evt_1"]


def test_coroutine_asks_for_a_redelivery(sqlite_shop: Shop) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    async def not_yet(event: Event) -> None:
        raise RetryLater(5)

    response = sqlite_shop.deliver()

    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")


def test_coroutines_and_functions_run_in_order(sqlite_shop: Shop) -> None:
    order: list[str] = []
    on = sqlite_shop.webhooks.on(TYPE)

    @on
    async def first(event: Event) -> None:
        await asyncio.sleep(0.01)
        sqlite_shop.grant("first")
        order.append("first")

    @on
    def second(event: Event) -> None:
        order.append(f"second of {sqlite_shop.db.session.query(sqlite_shop.Grant).count()}")

    assert sqlite_shop.deliver().status_code == 200
    assert order == ["first", "second of 1"]


def test_coroutine_has_the_contexts_and_on_commit(sqlite_shop: Shop) -> None:
    called: list[list[str]] = []

    @sqlite_shop.webhooks.on(TYPE)
    async def handler(event: Event) -> None:
        assert current_app.name == sqlite_shop.app.name
        assert request.path == "/webhook"
        sqlite_shop.grant(event.id)
        sqlite_shop.webhooks.on_commit(lambda: called.append(sqlite_shop.grants()))

    assert sqlite_shop.deliver().status_code == 200
    assert called == [["evt_1"]]


# -------------------------------------------------- work that nobody would have run


def forgotten_coroutine(event: Event) -> object:
    async def work() -> None: ...

    return work()


def forgotten_generator(event: Event) -> object:
    return (item for item in "abc")


def forgotten_async_generator(event: Event) -> object:
    async def items() -> c.AsyncIterator[int]:
        yield 1

    return items()


async def coroutine_of_a_coroutine(event: Event) -> object:
    return forgotten_coroutine(event)


class Awaitable:
    def __await__(self) -> c.Iterator[t.Any]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (forgotten_coroutine, "coroutine"),
        (forgotten_generator, "generator"),
        (forgotten_async_generator, "async_generator"),
        (coroutine_of_a_coroutine, "coroutine"),
        (lambda event: Awaitable(), "Awaitable"),
    ],
    ids=["coroutine", "generator", "async-generator", "nested", "awaitable"],
)
def test_result_that_is_still_to_be_run_is_a_failure(
    sqlite_shop: Shop, handler: Handler, kind: str
) -> None:
    sqlite_shop.webhooks.on(TYPE)(lambda event: sqlite_shop.grant(event.id))
    sqlite_shop.webhooks.on(TYPE)(handler)
    sqlite_shop.app.config["TESTING"] = True

    with pytest.raises(TypeError, match=f"returned a {kind} that nobody would run"):
        sqlite_shop.deliver()

    assert (sqlite_shop.grants(), sqlite_shop.recorded()) == ([], [])


@pytest.mark.parametrize("result", [None, 5, "done", [1]])
def test_other_results_are_ignored(sqlite_shop: Shop, result: object) -> None:
    sqlite_shop.webhooks.on(TYPE)(lambda event: result)

    assert sqlite_shop.deliver().json == {"received": True}


def generator(event: Event) -> c.Iterator[int]:
    yield 1


class GeneratorObject:
    def __call__(self, event: Event) -> c.Iterator[int]:
        yield 1


async def async_generator(event: Event) -> c.AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "handler", [generator, async_generator, functools.partial(generator), GeneratorObject()]
)
def test_generator_is_refused(sqlite_shop: Shop, handler: Handler) -> None:
    with pytest.raises(ConfigError, match="Remove the 'yield'"):
        sqlite_shop.webhooks.on(TYPE)(handler)
