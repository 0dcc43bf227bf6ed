"""Which handlers run for which event type. Pure, and usable before any app exists."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import itertools
import types
import warnings

from .errors import ConfigError
from .event import Event
from .event_types import KNOWN_TYPES

HandlerFunction = c.Callable[[Event], object]

MAX_MATCHING = 256
"""Event types whose handlers are remembered."""


@dataclasses.dataclass
class Handler:
    """A function and the patterns it is registered for."""

    function: HandlerFunction
    patterns: list[str]

    def __post_init__(self) -> None:
        self.is_async = is_async(self.function)

    def matches(self, event_type: str) -> bool:
        """Whether events of a type run the function."""
        return any(matches(pattern, event_type) for pattern in self.patterns)


class Registry:
    """Handlers in the order of their registration."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self._matching: dict[str, tuple[Handler, ...]] = {}

    def add(self, function: HandlerFunction, patterns: c.Sequence[str]) -> None:
        """Register a function.

        A function that is registered again runs once an event all the same: stacked decorators add
        up their patterns, and a module that is imported under two names, or reloaded, replaces its
        own functions. Functions of the same lines that hold different values, in a closure or as
        default arguments, are different functions.

        :param patterns: exact types, ``prefix.*`` or ``*``, as :func:`check_patterns` lets through.
        :raises ConfigError: if the function can never work as a handler.
        """
        _check_function(function)

        for position, handler in enumerate(self.handlers):
            if _same(handler.function, function):
                patterns = [*handler.patterns, *patterns]
                self.handlers[position] = Handler(function, list(dict.fromkeys(patterns)))
                break
        else:
            self.handlers.append(Handler(function, list(dict.fromkeys(patterns))))

        # A new one: a match that is under way in another thread may not know the function.
        self._matching = {}

    def match(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers to run for an event type, in the order of their registration."""
        matching = self._matching
        handlers = matching.get(event_type)

        if handlers is None:
            handlers = tuple(handler for handler in self.handlers if handler.matches(event_type))

            if len(matching) < MAX_MATCHING:
                matching[event_type] = handlers

        return handlers


def check_patterns(patterns: c.Sequence[str], *, stacklevel: int) -> None:
    """Refuse patterns that match nothing, and warn of those that match nothing known.

    :param stacklevel: as in :func:`warnings.warn`, seen from this call.
    :raises ConfigError: if there is no pattern, or a ``*`` is not the whole last segment.
    """
    if not patterns:
        raise ConfigError('Name what to handle, such as @webhooks.on("payment_intent.succeeded").')

    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(
                "Use the decorator with a type in parentheses, such as"
                ' @webhooks.on("payment_intent.succeeded").'
            )

        if not is_pattern(pattern):
            raise ConfigError(
                f"{pattern!r} matches no event. Use an exact type, 'payment_intent.*' or '*'."
            )

        if not is_known(pattern):
            hint = suggestion(pattern) or " The handler runs if it does."
            warnings.warn(
                f"Sangho is not known to send {pattern!r}.{hint}", stacklevel=stacklevel + 1
            )


def is_pattern(pattern: str) -> bool:
    """Whether a pattern can match anything."""
    return bool(pattern) and ("*" not in pattern or pattern == "*" or _is_prefix(pattern))


def is_known(pattern: str) -> bool:
    """Whether a pattern matches a type that Sangho is known to send."""
    return any(matches(pattern, known) for known in KNOWN_TYPES)


def suggestion(pattern: str, *, with_prefixes: bool = True) -> str:
    """A question, after a space, that names what is known and looks most alike; or nothing.

    :param with_prefixes: whether that may be a pattern such as ``payment_intent.*``.
    """
    known = [*KNOWN_TYPES, *_known_prefixes()] if with_prefixes else KNOWN_TYPES
    nearest = difflib.get_close_matches(pattern, known, n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _known_prefixes() -> set[str]:
    return {known.rpartition(".")[0] + ".*" for known in KNOWN_TYPES}


def _is_prefix(pattern: str) -> bool:
    prefix = pattern.removesuffix(".*")
    return bool(prefix) and prefix != pattern and "*" not in prefix


def matches(pattern: str, event_type: str) -> bool:
    """Whether events of a type are among those that a pattern means."""
    if pattern == "*":
        return True

    if pattern.endswith(".*"):
        prefix = pattern[:-1]
        return event_type.startswith(prefix) and len(event_type) > len(prefix)

    return pattern == event_type


def is_async(function: HandlerFunction) -> bool:
    """Whether calling the function makes a coroutine, also for objects with an async call."""
    return _is_any(function, inspect.iscoroutinefunction)


def _check_function(function: HandlerFunction) -> None:
    if not callable(function):
        raise ConfigError(f"A handler must be callable, not {type(function).__name__}.")

    if not _takes_one_argument(function):
        raise ConfigError("A handler takes one argument, the event: def handler(event).")

    if _is_any(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        raise ConfigError(
            "A handler must not be a generator: its body would never run. Remove the 'yield'."
        )

    if is_async(function) and importlib.util.find_spec("asgiref") is None:
        raise ConfigError(
            'An async handler needs the async extra: pip install "flask-sangho-webhooks[async]"'
        )


def _takes_one_argument(function: HandlerFunction) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True

    return True


def _is_any(function: HandlerFunction, *kinds: c.Callable[[object], bool]) -> bool:
    """Whether the function inside any partials, or its call if it is an object, is of a kind."""
    while isinstance(function, functools.partial):
        function = function.func

    call = getattr(function, "__call__", None)  # noqa: B004  # not a test for being callable
    return any(kind(function) or kind(call) for kind in kinds)


def _same(one: object, other: object) -> bool:
    """Whether two functions are equal, or made by the same lines of a file and hold the same."""
    if one == other:
        return True

    if not (isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType)):
        return False

    if one.__code__ != other.__code__ or one.__code__.co_filename != other.__code__.co_filename:
        return False

    inner = (getattr(one, "__wrapped__", None), getattr(other, "__wrapped__", None))
    return all(
        _same(*inner) if a is inner[0] and b is inner[1] else _same_value(a, b)
        for a, b in itertools.zip_longest(_held(one), _held(other))
    )


def _same_value(one: object, other: object) -> bool:
    # Equal lists may be different lists by the time that the handler runs.
    hashable = type(one).__hash__ is not None
    return one is other or (hashable and type(one) is type(other) and one == other)


def _held(function: types.FunctionType) -> c.Iterator[object]:
    """The default arguments of a function and the values in its closure."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()

    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is assigned later
            yield object()
