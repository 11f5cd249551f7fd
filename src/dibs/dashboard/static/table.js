// The live table: a row has a fixed height, and only rows in sight are in the document, so 10,000 names cost no more
// than thirty. The server sends the rows around the place to which the reader has scrolled.

import { el, keyed, put } from "./dom.js";
import { LeaseBar, ageSince } from "./lease.js";
import { atLeastZero, duration, shortToken } from "./words.js";

const STEP = 20; // rows; the window that the server sends moves by so many
const BEYOND = 4; // rows drawn above and below those in sight
const MOST_ROWS = 200;
export const LONG_WAIT = 30; // seconds; a longer wait is shown in colour

const COLUMNS = [
  { id: "name", title: "Name", sort: "name" },
  { id: "mode", title: "Kind" },
  { id: "holder", title: "Holder" },
  { id: "since", title: "Held for", sort: "age" },
  { id: "lease", title: "Lease" },
  { id: "token", title: "Token" },
  { id: "waiters", title: "Waiting", sort: "waiters" },
  { id: "pressure", title: "Pressure", sort: "pressure", about: "Total time of the current waits" },
  { id: "p95", title: "p95 wait", about: "95th percentile of the waits that ended" },
];

/** The kind of a lock in a few words. */
export function kindOf(row) {
  if (row.kind === "semaphore") return `semaphore ${used(row)}/${row.capacity}`;
  return row.kind === "rw" ? `rw, ${row.mode}` : row.kind;
}

/** Permits in use: never negative, never more than there are. */
export const used = (row) => Math.min(atLeastZero(row.used), row.capacity);

function holderOf(row) {
  if (!row.holders) return "nobody";
  return row.holders > 1 ? `${row.holder} and ${row.holders - 1} more` : row.holder;
}

class Row {
  constructor(prefix) {
    this.cells = Object.fromEntries(
      COLUMNS.map(({ id, title }) => [id, el("div", { role: "gridcell", class: `cell ${id}`, "data-title": title })]),
    );
    this.name = el("a", { class: "lock-name", tabindex: "-1" });
    this.trouble = el("span", { class: "trouble" });
    this.since = ageSince(null);
    this.lease = new LeaseBar();
    this.cells.name.append(this.name, this.trouble);
    this.cells.since.append(this.since);
    this.cells.lease.append(this.lease.node);
    this.node = el("div", { role: "row", class: "row", id: prefix }, ...Object.values(this.cells));
    this.node.row = this;
  }

  show(row, index, href, asOf) {
    const { cells, node } = this;
    node.style.setProperty("--index", index);
    node.setAttribute("aria-rowindex", index + 2);
    node.className = `row ${row.trouble ? "troubled" : row.waiters > 0 ? "contended" : "calm"}`;
    if (this.name.getAttribute("href") !== href) this.name.setAttribute("href", href);
    put(this.name, row.name);
    this.name.title = row.name;
    put(this.trouble, row.trouble ?? "");
    put(cells.mode, kindOf(row));
    put(cells.holder, holderOf(row));
    cells.holder.title = row.holder ?? "";
    this.since.dateTime = row.since ?? "";
    this.since.tick();
    this.lease.node.hidden = !row.holders;
    this.lease.set(row.remaining, row.lease, asOf);
    put(cells.token, row.token === null ? "–" : shortToken(row.token));
    cells.token.title = row.token ?? "";
    put(cells.waiters, row.waiters > 0 ? `${row.waiters} · ${duration(row.oldest_wait)}` : "–");
    cells.waiters.classList.toggle("long", row.oldest_wait >= LONG_WAIT);
    put(cells.pressure, row.waiters > 0 ? duration(row.pressure) : "–");
    put(cells.p95, row.p95_wait === null ? "–" : duration(row.p95_wait));
  }
}

export class Table {
  #grid;
  #body;
  #view = null;
  #active = { index: 0, key: null };
  #drawing = false;
  #on;

  /** Callbacks: `open(key)`, `href(key)`, `sort(order)`, `moved()` when other rows are needed. */
  constructor(grid, on) {
    this.#grid = grid;
    this.#on = on;
    const heads = COLUMNS.map(({ id, title, sort, about }) => {
      const attributes = { role: "columnheader", class: `cell ${id}`, title: about ?? null, "data-sort": sort ?? null };
      const button = () => el("button", { type: "button", tabindex: "-1", onclick: () => on.sort(sort) }, title);
      return el("div", attributes, sort ? button() : title);
    });
    const head = el("div", { role: "row", class: "row heads", "aria-rowindex": "1" }, ...heads);
    this.#body = el("div", { role: "rowgroup", class: "rows" });
    grid.setAttribute("aria-colcount", COLUMNS.length);
    grid.append(el("div", { role: "rowgroup", class: "head" }, head), this.#body);
    grid.addEventListener("scroll", () => this.#drawSoon());
    new ResizeObserver(() => this.#drawSoon()).observe(grid);
    this.#body.addEventListener("click", (event) => this.#clicked(event));
  }

  /** The rows to ask the server for. */
  window() {
    const [first, last] = this.#inSight();
    const offset = Math.max(0, Math.floor(first / STEP) * STEP - STEP);
    return { offset, limit: Math.min(MOST_ROWS, Math.ceil((last - offset) / STEP) * STEP + STEP) };
  }

  show(view, sort) {
    this.#view = view;
    for (const head of this.#grid.querySelectorAll("[data-sort]")) {
      const order = head.dataset.sort === "name" ? "ascending" : "descending";
      head.setAttribute("aria-sort", head.dataset.sort === sort ? order : "none");
    }
    this.#grid.setAttribute("aria-rowcount", view.total + 1);
    this.#body.style.setProperty("--total", view.total);
    const at = view.rows.findIndex((row) => row.key === this.#active.key);
    if (at >= 0) this.#active.index = view.offset + at;
    else if (this.#at(this.#active.index) !== undefined) this.#active.key = null; // it is gone, or filtered out
    this.#draw();
  }

  clear() {
    this.#view = null;
    this.#body.replaceChildren();
    this.#body.keyedChildren = undefined;
    this.toTop();
  }

  toTop() {
    this.#active = { index: 0, key: null };
    this.#grid.scrollTop = 0;
  }

  move(key) {
    const page = Math.max(1, Math.floor(this.#grid.clientHeight / this.#height()) - 2);
    const far = { PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, ...far };
    if (!(key in steps) || this.#view === null) return false;
    const { index, key: chosen } = this.#active;
    // The first step marks the row that is there.
    const next = chosen === null && Math.abs(steps[key]) === 1 ? index : index + steps[key];
    this.#activate(Math.max(0, Math.min(this.#view.total - 1, next)));
    return true;
  }

  /** Open the marked row. */
  enter() {
    if (this.#active.key !== null) this.#on.open(this.#active.key);
  }

  #activate(index) {
    this.#active = { index, key: this.#at(index)?.key ?? null };
    const height = this.#height();
    const top = index * height;
    const shown = this.#grid.clientHeight - this.#headHeight() - height;
    if (top < this.#grid.scrollTop) this.#grid.scrollTop = top;
    else if (top > this.#grid.scrollTop + shown) this.#grid.scrollTop = top - shown;
    this.#draw();
    this.#body.querySelector(".active")?.scrollIntoView({ block: "nearest" }); // of the page; the grid shows it
  }

  #at(index) {
    return this.#view?.rows[index - this.#view.offset];
  }

  #clicked(event) {
    const node = event.target.closest(".row");
    if (node === null) return;
    this.#active = { index: Number(node.getAttribute("aria-rowindex")) - 2, key: node.row.key };
    if (event.target.closest("a") || getSelection().type === "Range") return;
    this.#on.open(node.row.key);
  }

  #height() {
    return Number(getComputedStyle(this.#grid).getPropertyValue("--row-height"));
  }

  #headHeight() {
    return this.#grid.firstElementChild.offsetHeight;
  }

  #inSight() {
    const height = this.#height();
    const first = Math.floor(this.#grid.scrollTop / height);
    return [first, first + Math.ceil(this.#grid.clientHeight / height) + 1];
  }

  #drawSoon() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#draw();
    });
  }

  #draw() {
    const view = this.#view;
    if (view === null) return;
    const [first, last] = this.#inSight();
    const from = Math.max(view.offset, first - BEYOND);
    const till = Math.min(view.offset + view.rows.length, last + BEYOND);
    const inSight = view.rows.slice(from - view.offset, Math.max(0, till - view.offset));
    const shown = inSight.map((row, i) => ({ row, index: from + i }));
    if (this.#active.key === null && document.activeElement === this.#grid) {
      this.#active.key = this.#at(this.#active.index)?.key ?? null;
    }
    const make = () => new Row(this.#newId()).node;
    keyed(this.#body, shown, ({ row }) => row.key, make, (node, { row, index }) => {
      node.row.key = row.key;
      node.row.show(row, index, this.#on.href(row.key), view.as_of);
      const active = row.key === this.#active.key;
      node.classList.toggle("active", active);
      node.setAttribute("aria-selected", String(active));
      if (active) this.#grid.setAttribute("aria-activedescendant", node.id);
    });
    const wanted = Math.min(view.total, last);
    if (first < view.offset || wanted > view.offset + view.rows.length) this.#on.moved();
  }

  #made = 0;

  #newId() {
    this.#made += 1;
    return `row-${this.#made}`;
  }
}
