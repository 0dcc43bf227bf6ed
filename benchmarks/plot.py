"""The plot of what grows, as SVG: two panels with logarithmic axes."""

from __future__ import annotations

import collections.abc as c
import html
import math

from .measure import Growth
from .report import duration

WIDTH, HEIGHT, MARGIN = 420, 300, 56
COLOURS = ("#0b6e4f", "#c1440e", "#7a7a7a")
TITLES = {"body": "verify and parse, by bytes of the body", "rows": "claim, by rows in the table"}

Points = list[tuple[int, float]]


def draw(growth: Growth) -> str:
    """An SVG of the lines that there are."""
    panels = [(TITLES[name], lines) for name, lines in growth.items() if lines]
    width = max(1, len(panels)) * WIDTH
    drawn = [
        f'<g transform="translate({number * WIDTH} 0)">{"".join(_panel(title, lines))}</g>'
        for number, (title, lines) in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>\n{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, lines: dict[str, Points]) -> c.Iterator[str]:
    sizes = sorted({size for points in lines.values() for size, _ in points})
    times = [seconds for points in lines.values() for _, seconds in points]
    # Whole powers of ten: what is flat is to look flat.
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    across = _scale(math.log10(sizes[0]), math.log10(sizes[-1]), MARGIN, WIDTH - 20)
    up = _scale(low, max(high, low + 1), HEIGHT - 40, 40)
    yield _text(WIDTH / 2, 20, title, "middle", "#000")

    for power in range(low, max(high, low + 1) + 1):
        y = up(power)
        yield f'<path d="M{MARGIN} {y:.1f}H{WIDTH - 20}" stroke="#ddd"/>'
        yield _text(MARGIN - 6, y + 4, duration(10.0**power), "end")

    for size in sizes:
        yield _text(across(math.log10(size)), HEIGHT - 22, _short(size), "middle")

    for number, ((name, points), colour) in enumerate(zip(lines.items(), COLOURS, strict=False)):
        dots = [(across(math.log10(size)), up(math.log10(time))) for size, time in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots)
        yield _text(MARGIN + 10, 54 + 15 * number, name, "start", colour)


def _scale(least: float, most: float, start: float, end: float) -> c.Callable[[float], float]:
    return lambda value: start + (value - least) / (most - least or 1) * (end - start)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#555") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{html.escape(text)}</text>\n"
    )


def _short(size: int) -> str:
    """300, 2k, 10M."""
    for factor, unit in ((1_000_000, "M"), (1_000, "k")):
        if size >= factor:
            return f"{size / factor:g}{unit}"

    return str(size)
