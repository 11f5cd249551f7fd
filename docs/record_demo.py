"""Record `dibs demo` as an animated picture, light and dark: `scripts/record`.

The real command runs in a terminal of a fixed size (a pty; pyte draws it). What the terminal shows several times a
second becomes a frame. An SVG shows the frames one after the other by CSS alone, so it moves inside an <img> too. With
`prefers-reduced-motion`, or without CSS, it shows the last frame.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

STATIC = Path(__file__).parent / "_static"
COMMAND = ("dibs", "demo")
COLUMNS, ROWS = 112, 24
BETWEEN_FRAMES = 0.14
SLOWER = 1.7
"""The demo takes six seconds, which is too quick to read."""
HEADING = 2
"""Rows that the command and the first line of its output take. The picture begins when there is more to see."""
LAST_FRAME = 9.0
"""Seconds for which the proof stays."""
SIZE, WIDTH, HEIGHT, EDGE = 14, 8.4, 19, 16
"""The size of a character and the margin of the text, in pixels."""
TITLE = "dibs demo in a terminal"
ABOUT = (
    "Five worker processes queue for one lock. One is killed and one is paused while it holds the lock. "
    "The late write of the paused one is refused. The proof at the end says that no two holders overlapped."
)
THEMES = {
    "light": {"back": "#ffffff", "edge": "#d0d7de", "text": "#1f2328", "dim": "#6e7781", "red": "#cf222e",
              "green": "#116329", "brown": "#7d4e00"},
    "dark": {"back": "#0d1117", "edge": "#30363d", "text": "#e6edf3", "dim": "#8b949e", "red": "#ff7b72",
             "green": "#56d364", "brown": "#e3b341"},
}  # fmt: skip
"""Each with a contrast of at least 4.5 on its background. `brown` is pyte's name of yellow."""

Run = tuple[str, str]
"""A text and the classes of its style."""
Row = tuple[Run, ...]
Frame = tuple[Row, ...]


def record(*options: str) -> list[tuple[float, Frame]]:
    """One screen of the terminal, and when it appeared."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(b"$ " + " ".join(COMMAND).encode() + b"\r\n")
    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    around = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "DIBS_URL"}}
    around |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    words = [sys.executable, "-P", "-m", *COMMAND, *options]
    frames: list[tuple[float, Frame]] = []
    began: float | None = None
    with subprocess.Popen(words, stdin=inside, stdout=inside, stderr=inside, env=around) as demo:  # noqa: S603
        os.close(inside)
        for chunk in chunks(terminal):
            now = time.monotonic()
            stream.feed(chunk)
            frame = shown(screen)
            if began is None and sum(map(bool, frame)) > HEADING:
                began = now
            if began is not None:
                frames.append((now - began, frame))
    os.close(terminal)
    if demo.returncode != 0:
        raise SystemExit(f"the demo failed: {demo.returncode}")
    return frames


def chunks(terminal: int) -> Iterator[bytes]:
    """Until the command ends. A chunk goes on until the terminal is quiet for a moment: then no frame is half drawn."""
    data = b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.01 if data else None)
        try:
            more = os.read(terminal, 65536) if ready else b""
        except OSError:  # that is how the end of a pty is told
            yield dimmed(data)
            return
        if more:
            data += more
        elif data:
            yield dimmed(data)
            data = b""


def dimmed(data: bytes) -> bytes:
    """pyte knows no faint text (SGR 2): it becomes grey."""
    return data.replace(b"\x1b[2m", b"\x1b[90m")


def shown(screen: pyte.Screen) -> Frame:
    return tuple(row(screen.buffer[line]) for line in range(ROWS))


def row(cells: dict[int, pyte.screens.Char]) -> Row:
    styled = [(cell.data, style(cell)) for cell in (cells[column] for column in range(COLUMNS))]
    runs = ["".join(data for data, _ in run) for _, run in groupby(styled, key=lambda one: one[1])]
    styles = [kind for kind, _ in groupby(styled, key=lambda one: one[1])]
    while runs and not runs[-1].strip():
        del runs[-1], styles[-1]
    if runs:
        runs[-1] = runs[-1].rstrip()
    return tuple(zip(runs, styles, strict=True))


def style(cell: pyte.screens.Char) -> str:
    if cell.data == " ":
        return ""
    colour = {"default": "", "brightblack": "d", "red": "r", "green": "g", "brown": "y"}.get(cell.fg, "")
    return " ".join(part for part in (colour, "b" if cell.bold else "") if part)


def thinned(frames: list[tuple[float, Frame]]) -> list[tuple[float, Frame]]:
    """At most one for each interval, each different from the one before, and the last."""
    kept = frames[:1]
    for at, frame in frames[1:]:
        if frame != kept[-1][1] and (at - kept[-1][0] >= BETWEEN_FRAMES or frame == frames[-1][1]):
            kept.append((at, frame))
    return kept


def drawn(frames: list[tuple[float, Frame]], colours: dict[str, str]) -> str:
    """The frames stand side by side on a strip that moves past the window. A row that comes again is written once."""
    width, height = round(COLUMNS * WIDTH + 2 * EDGE), ROWS * HEIGHT + 2 * EDGE
    rows = {one: f"r{number}" for number, one in enumerate(dict.fromkeys(row for _, frame in frames for row in frame))}
    whole = frames[-1][0] * SLOWER + LAST_FRAME
    steps = "".join(
        f"{round(100 * at * SLOWER / whole, 2):g}%{{transform:translateX({-number * width}px)}}"
        for number, (at, _) in enumerate(frames)
    )
    last = f"transform:translateX({-(len(frames) - 1) * width}px)"
    strip = "\n".join(
        f'<g transform="translate({number * width})">'
        + "".join(f'<use href="#{rows[one]}" y="{line * HEIGHT}"/>' for line, one in enumerate(frame) if one)
        + "</g>"
        for number, (_, frame) in enumerate(frames)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 role="img" aria-labelledby="title about">
<title id="title">{escape(TITLE)}</title>
<desc id="about">{escape(ABOUT)}</desc>
<style>
text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:{colours["text"]};\
white-space:pre}}
.b{{font-weight:700}}.d{{fill:{colours["dim"]}}}.r{{fill:{colours["red"]}}}.g{{fill:{colours["green"]}}}\
.y{{fill:{colours["brown"]}}}
#strip{{animation:play {whole:.1f}s step-end infinite;{last}}}
@keyframes play{{{steps}100%{{{last}}}}}
@media (prefers-reduced-motion:reduce){{#strip{{animation:none}}}}
</style>
<defs>
{"".join(line(name, one) for one, name in rows.items() if one)}</defs>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{colours["back"]}"
 stroke="{colours["edge"]}"/>
<g id="strip">
{strip}
</g>
</svg>
"""


def line(name: str, runs: Row) -> str:
    """`textLength` makes every monospaced font as wide as the terminal's columns."""
    text = "".join(f'<tspan class="{kind}">{escape(run)}</tspan>' if kind else escape(run) for run, kind in runs)
    length = sum(len(run) for run, _ in runs) * WIDTH
    return (
        f'<text id="{name}" x="{EDGE}" y="{EDGE + SIZE}" textLength="{length:g}" xml:space="preserve">{text}</text>\n'
    )


def main() -> None:
    frames = thinned(record("--seed", "7"))
    STATIC.mkdir(exist_ok=True)
    for theme, colours in THEMES.items():
        file = STATIC / f"demo-{theme}.svg"
        file.write_text(drawn(frames, colours), encoding="utf-8")
        print(f"{file.relative_to(Path.cwd())}: {len(frames)} frames, {file.stat().st_size / 1000:.0f} KB")  # noqa: T201


if __name__ == "__main__":
    main()
