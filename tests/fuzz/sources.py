"""The two sources of choices."""

from __future__ import annotations

import functools
import typing as t

from hypothesis import strategies as st

_T = t.TypeVar("_T")

_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=60),
    ),
    lambda values: st.one_of(
        st.lists(values, max_size=4), st.dictionaries(st.text(max_size=8), values, max_size=4)
    ),
    max_leaves=8,
)


class Drawn:
    """Choices that hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: tuple[_T, ...]) -> _T:
        return options[self.number(0, len(options) - 1)]

    def number(self, low: int, high: int) -> int:
        return self._draw(_numbers(low, high))

    def binary(self, size: int) -> bytes:
        return self._draw(_binaries(size))

    def value(self) -> t.Any:
        return self._draw(_values)


@functools.cache
def _numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@functools.cache
def _binaries(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=size)


class Read:
    """Choices read from bytes, which a fuzzer changes. At their end, all are the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._levels = 40

    def pick(self, options: tuple[_T, ...]) -> _T:
        return options[self.number(0, len(options) - 1)]

    def number(self, low: int, high: int) -> int:
        span = high - low + 1
        raw = int.from_bytes(self._take(((span - 1).bit_length() + 7) // 8), "big")
        return low + raw % span

    def binary(self, size: int) -> bytes:
        return self._take(self.number(0, size))

    def value(self) -> t.Any:
        kind = self.number(0, 7)

        if kind < 2 and self._levels:
            self._levels -= 1
            values = [self.value() for _ in range(self.number(0, 3))]
            return values if kind else {self.binary(8).decode("latin-1"): v for v in values}

        if kind == 2:
            return self.number(-(2**31), 2**31)

        if kind == 3:
            return self.binary(60).decode("utf-8", "replace")

        return self.pick((None, True, False, 0.5, float("nan"), "\ud800", 2**64))

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken
