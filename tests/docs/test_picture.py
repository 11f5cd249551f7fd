"""The recorded picture of `dibs demo`: docs/_static/demo-*.svg, made by scripts/record."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

STATIC = Path(__file__).parents[2] / "docs/_static"
SVG = "{http://www.w3.org/2000/svg}"
LARGEST = 150_000


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_demo", STATIC.parent / "record_demo.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_frame(svg: ET.Element) -> str:
    """Its text: what is shown without motion."""
    rows = {one.get("id"): "".join(one.itertext()) for one in svg.iter(f"{SVG}text")}
    frame = svg.findall(f"{SVG}g/{SVG}g")[-1]
    return "\n".join(rows[str(use.get("href")).removeprefix("#")] for use in frame.iter(f"{SVG}use"))


def check(text: str) -> None:
    """It is small, moves without a script, loads nothing, and says what it shows."""
    assert len(text.encode()) < LARGEST
    svg = ET.fromstring(text)
    assert (svg.get("role"), svg.get("aria-labelledby")) == ("img", "title about")
    for tag, name in (("title", "title"), ("desc", "about")):
        (said,) = svg.findall(f"{SVG}{tag}")
        assert said.get("id") == name
        assert said.text
    (style,) = [one.text or "" for one in svg.iter(f"{SVG}style")]
    assert "@keyframes" in style
    assert "@media (prefers-reduced-motion:reduce){#strip{animation:none}}" in style
    assert "url(" not in style
    links = [value for one in svg.iter() for key, value in one.attrib.items() if key.endswith("href")]
    assert all(link.startswith("#") for link in links)
    assert not [one.tag for one in svg.iter() if one.tag in {f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject"}]
    frames = svg.findall(f"{SVG}g/{SVG}g")
    assert len(frames[0]) >= 5, "an empty box is no picture"
    width = int(str(svg.get("viewBox")).split()[2])
    assert f"translateX({-(len(frames) - 1) * width}px)" in style.partition("@keyframes")[0]
    assert "PROVED" in last_frame(svg)
    assert "NOT PROVED" not in last_frame(svg)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_is_small_and_can_be_read_without_motion(theme: str) -> None:
    check((STATIC / f"demo-{theme}.svg").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_demo_can_be_recorded(recorder: ModuleType) -> None:
    frames = recorder.thinned(recorder.record("--workers", "2", "--turns", "4"))
    assert len(frames) > 5
    assert [at for at, _ in frames] == sorted(at for at, _ in frames)
    for colours in recorder.THEMES.values():
        check(recorder.drawn(frames, colours))


@pytest.mark.slow
def test_every_colour_can_be_read_on_its_background(recorder: ModuleType) -> None:
    """A contrast of 4.5, as WCAG 2 wants it for text."""

    def luminance(colour: str) -> float:
        parts = [int(part, 16) / 255 for part in re.findall("..", colour[1:])]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colours in recorder.THEMES.values():
        back = luminance(colours["back"])
        for name in colours.keys() - {"back", "edge"}:
            low, high = sorted((luminance(colours[name]), back))
            assert (high + 0.05) / (low + 0.05) >= 4.5, colours[name]
