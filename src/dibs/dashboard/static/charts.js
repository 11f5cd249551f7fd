// The pictures of the first page besides the table: contention by time, and who made whom wait.

import { el, isNew, svg } from "./dom.js";
import { atLeastZero, clockTime, duration } from "./words.js";

const LEVELS = 5; // shades; 0 is the empty cell
const CELL = { width: 10, height: 18, gap: 1 };

/** Locks by time: the shade of a cell is its waiter-seconds. Each row says its content in words. */
export function heatMap(list, axis, heat, href) {
  const shown = heat.rows.filter((row) => row.cells.some((cell) => cell > 0));
  if (!isNew(list, [heat, href("")])) return shown.length;
  const most = Math.max(...shown.flatMap((row) => row.cells), 0);
  // The square root keeps a short wait visible beside a long one.
  const level = (cell) => (cell > 0 ? Math.max(1, Math.ceil(Math.sqrt(cell / most) * (LEVELS - 1))) : 0);
  const end = Date.parse(heat.end);
  const begin = (cells, i) => clockTime(end - (cells.length - i) * heat.bucket * 1000);
  list.replaceChildren(
    ...shown.map(({ name, key, cells }) => {
      const worst = cells.indexOf(Math.max(...cells));
      const total = atLeastZero(cells.reduce((sum, cell) => sum + atLeastZero(cell), 0));
      const words = `${duration(total)} waited, most at ${begin(cells, worst)}: ${duration(cells[worst])}`;
      const picture = svg("svg", {
        class: "heat", role: "img", "aria-label": words, preserveAspectRatio: "none",
        viewBox: `0 0 ${cells.length * CELL.width} ${CELL.height}`,
      });
      cells.forEach((cell, i) => {
        const title = svg("title", { text: `${begin(cells, i)}: ${duration(cell)} waited` });
        const place = { x: i * CELL.width, y: 0, width: CELL.width - CELL.gap, height: CELL.height };
        picture.append(svg("rect", { class: `heat-${level(cell)}`, ...place }, title));
      });
      const link = el("a", { class: "lock-name", href: href(key), title: name, text: name });
      return el("li", {}, link, picture, el("span", { class: "figure", text: duration(total) }));
    }),
  );
  const buckets = shown[0]?.cells.length ?? 0;
  const ago = (share) => clockTime(end - buckets * heat.bucket * 1000 * share);
  axis.replaceChildren(...[1, 0.5, 0].map((share) => el("span", { text: ago(share) })));
  return shown.length;
}

/** A table: the pairs are sorted by the server, the longest wait first. */
export function pairTable(body, pairs) {
  if (!isNew(body, pairs)) return;
  const most = Math.max(...pairs.map((pair) => pair.seconds), 0.001);
  body.replaceChildren(
    ...pairs.map(({ blocker, waiter, name, seconds }) => {
      const bar = el("span", { class: "share", "aria-hidden": "true" });
      bar.style.setProperty("--share", atLeastZero(seconds) / most);
      return el(
        "tr", {},
        el("td", { class: "who", text: blocker, title: blocker }),
        el("td", { class: "who", text: waiter, title: waiter }),
        el("td", { class: "lock-name", text: name, title: name }),
        el("td", { class: "figure" }, el("span", { text: duration(seconds) }), bar),
      );
    }),
  );
}
