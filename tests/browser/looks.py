"""Is a page legible: enough contrast, and nothing beyond the right edge."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

Open = Callable[..., Page]

# The texts below `root` whose contrast with what lies behind them is less than WCAG 2 (AA) asks for.
_FAINT = r"""
(root) => {
  const brush = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const seen = new Map();
  const rgba = (color) => {
    if (!seen.has(color)) {
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = color;
      brush.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
      seen.set(color, [r, g, b, a / 255]);
    }
    return seen.get(color);
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const chosen = getComputedStyle(document.documentElement).colorScheme;
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const grounds = new Map([[null, dark ? [0, 0, 0] : [255, 255, 255]]]);
  const behind = (element) => {
    if (!grounds.has(element)) {
      grounds.set(element, over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
    }
    return grounds.get(element);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = new Map();
  for (const top of document.querySelectorAll(root)) {
    const texts = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.data.trim();
      const element = texts.currentNode.parentElement;
      if (!text || element.closest("noscript, script, style, :disabled, [aria-hidden='true']") ||
          !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      const style = getComputedStyle(element);
      const below = behind(element);
      const color = element instanceof SVGElement ? style.fill : style.color;
      const [light, dark] = [luminance(over(rgba(color), below)), luminance(below)].sort((a, b) => b - a);
      const ratio = (light + 0.05) / (dark + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio >= (large ? 3 : 4.5)) continue;
      faint.set(`${color} on ${below.map(Math.round)}`, `${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
    }
  }
  return Object.fromEntries(faint);
}
"""

# Furo hides what the document has too much, and scrolls a box around the text instead.
_TOO_WIDE = """
() => {
  const scrolls = (it) => it === document.documentElement || getComputedStyle(it).overflowX !== "visible";
  for (let it = document.querySelector("article") ?? document.body; it; it = it.parentElement) {
    if (it.scrollWidth > it.clientWidth && scrolls(it)) return true;
  }
  return false;
}
"""


def faint_texts(page: Page, root: str) -> dict[str, str]:
    """One text for each pair of colours that is hard to read."""
    found: dict[str, str] = page.evaluate(_FAINT, root)
    return found


def is_too_wide(page: Page) -> bool:
    """The document, or the part of it around the main text, could be scrolled to the right."""
    wide: bool = page.evaluate(_TOO_WIDE)
    return wide
