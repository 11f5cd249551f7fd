// The swim lanes of a lock: one lane for each owner; bars are holds, hatched bars are waits, ticks are renewals.

import { el, isNew, svg } from "./dom.js";
import { clockTime, count, duration } from "./words.js";

const SHORTEST = 30_000; // milliseconds that the picture spans at least
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].map((s) => s * 1000);
const MOST_TICKS = 6;
const HEIGHT = 24;

const ENDS = { expired: "; the lease ended", broken: "; the hold was broken", left: "; it left the queue" };

const percent = (share) => `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(3)}%`;

function words(span, till) {
  const length = duration((Date.parse(span.to ?? till) - Date.parse(span.from)) / 1000);
  const kind = span.kind === "held" ? `held ${length}${span.token ? `, token ${span.token}` : ""}` : `waited ${length}`;
  return `${clockTime(Date.parse(span.from))}: ${kind}${ENDS[span.end] ?? ""}`;
}

function drawn(span, at, till) {
  const [from, to] = [at(span.from), at(span.to ?? till)];
  const place = { x: percent(from), width: percent(to - from), y: 3, height: HEIGHT - 6, rx: 2 };
  const title = () => svg("title", { text: words(span, till) });
  const bar = svg("rect", { class: `span ${span.kind}`, ...place }, title());
  if (span.end !== "expired" && span.end !== "broken") return [bar];
  const mark = svg("rect", { class: "ended", x: percent(to), y: 0, width: 3, height: HEIGHT }, title());
  return [bar, mark];
}

export function timeline(list, axis, lanes, asOf) {
  if (!isNew(list, [lanes, asOf])) return;
  const till = Date.parse(asOf);
  const begins = lanes.flatMap((lane) => lane.spans.map((span) => Date.parse(span.from)));
  const start = Math.min(till - SHORTEST, ...begins);
  const at = (time) => (Date.parse(time) - start) / (till - start);
  list.replaceChildren(
    ...lanes.map((lane) => {
      const spoken = lane.spans.map((span) => words(span, asOf)).join(". ");
      const renewed = lane.renewals.length > 0 ? `. ${count(lane.renewals.length, "renewal")} seen` : "";
      const picture = svg("svg", { class: "lane", height: HEIGHT, role: "img", "aria-label": `${spoken}${renewed}` });
      for (const span of lane.spans) picture.append(...drawn(span, at, asOf));
      for (const time of lane.renewals) {
        const title = svg("title", { text: `renewed at ${clockTime(Date.parse(time))}` });
        const place = { x: percent(at(time)), y: HEIGHT - 8, width: 1.5, height: 5 };
        picture.append(svg("rect", { class: "renewal", ...place }, title));
      }
      return el("li", {}, el("span", { class: "who", text: lane.owner, title: lane.owner }), picture);
    }),
  );
  const step = STEPS.find((ms) => (till - start) / ms <= MOST_TICKS) ?? STEPS.at(-1);
  const marks = [];
  for (let time = Math.ceil(start / step) * step; time <= till; time += step) marks.push(time);
  axis.replaceChildren(
    ...marks.map((time) => {
      const mark = el("span", { text: clockTime(time) });
      mark.style.setProperty("--at", (time - start) / (till - start));
      return mark;
    }),
  );
}

/** The permits of a semaphore: drawn one by one while they can be counted by eye. */
export function gauge(parent, capacity, used, waiting) {
  if (!isNew(parent, [capacity, used, waiting])) return;
  const words = `${used} of ${count(capacity, "permit")} in use, ${capacity - used} free, ${count(waiting, "waiter")}`;
  const boxes = Math.min(capacity, 40);
  const full = Math.round((used / capacity) * boxes);
  const view = { width: boxes * 16, height: 22, viewBox: `0 0 ${boxes * 16} 22` };
  const picture = svg("svg", { class: "gauge", role: "img", "aria-label": words, ...view });
  for (let i = 0; i < boxes; i += 1) {
    const place = { x: i * 16 + 1, y: 1, width: 13, height: 20, rx: 3 };
    picture.append(svg("rect", { class: i < full ? "permit taken" : "permit", ...place }));
  }
  parent.replaceChildren(picture, el("p", { text: words }));
}
