// The bar of a lease: it drains by the page's clock, once a second, and is full again after each renewal. An animation
// would make the browser draw sixty times a second, as long as a lock is held.

import { el, put } from "./dom.js";
import { atLeastZero, age, clock } from "./words.js";

/** Two reads of one deadline differ by the time of the read: less than this, in seconds, is no renewal. */
const SAME = 0.25;

export class LeaseBar {
  #fill = el("span", { class: "lease-fill" });
  #text = el("span", { class: "lease-text", "data-ticks": "" });
  #deadline = -Infinity;
  #lease = 0;

  constructor() {
    this.node = el(
      "span", { class: "lease-bar" },
      el("span", { class: "lease-track", "aria-hidden": "true" }, this.#fill), this.#text,
    );
    this.#text.tick = () => this.#tick();
  }

  /** `asOf` is when the store was read. */
  set(remaining, lease, asOf) {
    const deadline = Date.parse(asOf) / 1000 + atLeastZero(remaining);
    if (Math.abs(deadline - this.#deadline) >= SAME || lease !== this.#lease) {
      this.#deadline = deadline;
      this.#lease = atLeastZero(lease);
    }
    this.#tick();
  }

  get #left() {
    return atLeastZero(this.#deadline - clock.now() / 1000);
  }

  #tick() {
    const share = this.#lease > 0 ? Math.min(this.#left / this.#lease, 1) : 0;
    put(this.#text, age(this.#left));
    this.#fill.style.transform = `scaleX(${share})`;
  }
}

/** A text that grows older every second. */
export function ageSince(time) {
  const node = el("time", { "data-ticks": "", datetime: time ?? "" });
  node.tick = () => put(node, node.dateTime ? age(clock.secondsSince(node.dateTime)) : "–");
  node.tick();
  return node;
}

export function tickAll() {
  for (const node of document.querySelectorAll("[data-ticks]")) node.tick();
}
