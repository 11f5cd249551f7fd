"""SVG charts for docs/benchmarks.md: bars in groups, and lines in panels. Each is drawn for a light and a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 760
_FONT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, sans-serif'"
_LABELS, _VALUES = 210, 150
"""Room for the names on the left and for the figures on the right, in pixels."""
_BAR, _GAP, _GROUP = 16, 6, 34
_PANEL_WIDTH, _PANEL_HEIGHT = WIDTH // 2, 210


class Palette(NamedTuple):
    text: str
    faint: str
    ours: str
    peer: str
    floor: str
    grid: str
    series: tuple[str, ...]


PALETTES = {
    "light": Palette(
        "#1f2328", "#59636e", "#0a66c2", "#9a6700", "#8c959f", "#d1d9e0", ("#0a66c2", "#9a6700", "#8250df", "#1a7f37")
    ),
    "dark": Palette(
        "#e6edf3", "#9198a1", "#4da3ff", "#d29922", "#6e7681", "#30363d", ("#4da3ff", "#d29922", "#bc8cff", "#3fb950")
    ),
}


class Bar(NamedTuple):
    name: str
    value: float
    note: str
    """The figure as text, behind the bar."""
    part: str
    """ours, peer or floor."""


def bars(title: str, groups: Mapping[str, Sequence[Bar]], palette: Palette) -> str:
    """Horizontal bars. Every group has a scale of its own: its longest bar fills the width."""
    room = WIDTH - _LABELS - _VALUES
    parts, y = [], 12
    for group, some in groups.items():
        parts.append(_text(0, y + 14, group, palette.text, weight="600"))
        y += _GROUP - 10
        longest = max(bar.value for bar in some)
        for bar in some:
            length, middle = max(bar.value / longest * room, 1), y + _BAR - 4
            parts.append(_text(_LABELS - 8, middle, bar.name, palette.text, anchor="end"))
            colour = {"ours": palette.ours, "peer": palette.peer, "floor": palette.floor}[bar.part]
            parts.append(f"<rect x='{_LABELS}' y='{y}' width='{length:.1f}' height='{_BAR}' rx='2' fill='{colour}'/>")
            parts.append(_text(_LABELS + length + 6, middle, bar.note, palette.faint))
            y += _BAR + _GAP
        y += _GROUP - 20
    return _svg(title, WIDTH, y, parts)


def panels(title: str, charts: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], palette: Palette) -> str:
    """Line charts, two in a row, each with a scale of its own; x counts in powers of two."""
    parts = []
    for number, (name, series) in enumerate(charts.items()):
        left, top = number % 2 * _PANEL_WIDTH, number // 2 * _PANEL_HEIGHT
        parts += _panel(left, top, name, series, palette)
    return _svg(title, WIDTH, -(-len(charts) // 2) * _PANEL_HEIGHT + 8, parts)


def _panel(
    left: int, top: int, name: str, series: Mapping[str, Sequence[tuple[float, float]]], palette: Palette
) -> list[str]:
    x0, x1, y0, y1 = left + 52, left + _PANEL_WIDTH - 16, top + 168, top + 62
    xs = sorted({x for points in series.values() for x, _ in points})
    highest = _round_up(max(y for points in series.values() for _, y in points))
    place = {x: x0 + (x1 - x0) * index / max(len(xs) - 1, 1) for index, x in enumerate(xs)}
    parts = [_text(left, top + 20, name, palette.text, weight="600")]
    for share in (0, 0.5, 1):
        y = y0 + (y1 - y0) * share
        parts.append(f"<line x1='{x0}' y1='{y}' x2='{x1}' y2='{y}' stroke='{palette.grid}'/>")
        parts.append(_text(x0 - 6, y + 4, f"{highest * share:,.0f}", palette.faint, anchor="end"))
    parts += [_text(at, y0 + 18, f"{x:g}", palette.faint, anchor="middle") for x, at in place.items()]
    at = left
    for (label, points), colour in zip(series.items(), palette.series, strict=False):
        path = " ".join(f"{place[x]:.1f},{y0 + (y1 - y0) * y / highest:.1f}" for x, y in points)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        parts.append(f"<rect x='{at}' y='{top + 32}' width='10' height='10' rx='2' fill='{colour}'/>")
        parts.append(_text(at + 14, top + 41, label, palette.text))
        at += 28 + len(label) * 7
    return parts


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if step * factor >= value:
                return step * factor
        step *= 10


def _text(x: float, y: float, words: str, colour: str, *, anchor: str = "start", weight: str = "400") -> str:
    where = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {where} fill='{colour}' font-size='12' font-weight='{weight}'>{escape(words)}</text>"


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    return "\n".join([f"{head} role='img' {_FONT}>", f"<title>{escape(title)}</title>", *parts, "</svg>", ""])
