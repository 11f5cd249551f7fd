// The dashboard's page. The address after # says what is shown, so that a link to it can be shared:
//   #locks/STORE?find=TEXT&prefix=TEXT&sort=ORDER   and   #lock/STORE/KEY

import { drawGraph } from "./graph.js";
import { heatMap, pairTable } from "./charts.js";
import { command, el, find, isNew, keyed, put } from "./dom.js";
import { tickAll } from "./lease.js";
import { LockPage } from "./lock.js";
import { Source, ask, stateAfter } from "./source.js";
import { LONG_WAIT, Table } from "./table.js";
import { age, atLeastZero, clock, clockTime, count, duration } from "./words.js";

const WHILE_TYPING = 200; // milliseconds
const WHILE_SCROLLING = 80;
const OLD = 5; // seconds; older data say their age
const AGAIN = 2000;
const PART = /[^:/|]*[:/|]/g; // of a name; views.py counts by it
const SORTS = ["pressure", "waiters", "age", "name"];

const SILENT = "The dashboard does not answer. This page asks again every two seconds.";
const STATES = {
  connecting: "connecting",
  live: "live",
  polling: "live, by polling",
  reconnecting: "reconnecting",
  wrong: "not found",
  refused: "the dashboard asks for its token: open the link that it printed when it started",
};

let stores = [];
let route = null;
let asked = null; // the parameters of the stream
let last = null; // the newest view
let asOf = null;
let state = "connecting";

const lockHref = (key) => `#lock/${route.store}/${key}`;

function locksHref(changes = {}) {
  const { store, find: text, prefix, sort } = { ...route, ...changes };
  const query = new URLSearchParams();
  if (text) query.set("find", text);
  if (prefix) query.set("prefix", prefix);
  if (sort !== SORTS[0]) query.set("sort", sort);
  return `#locks/${store}${query.size > 0 ? `?${query}` : ""}`;
}

function parse(hash) {
  const cut = hash.indexOf("?");
  const [page, store, key] = (cut < 0 ? hash : hash.slice(0, cut)).slice(1).split("/");
  const query = new URLSearchParams(cut < 0 ? "" : hash.slice(cut + 1));
  const id = store || stores[0].id;
  if (page === "lock" && key) {
    const { find: text = "", prefix = "", sort = SORTS[0] } = route?.store === id ? route : {};
    return { store: id, key, find: text, prefix, sort };
  }
  const sort = SORTS.includes(query.get("sort")) ? query.get("sort") : SORTS[0];
  return { store: id, key: null, find: query.get("find") ?? "", prefix: query.get("prefix") ?? "", sort };
}

const table = new Table(find("grid"), {
  open: (key) => (location.hash = lockHref(key)),
  href: lockHref,
  sort: (sort) => (location.hash = locksHref({ sort })),
  moved: () => request(WHILE_SCROLLING),
});
const lockPage = new LockPage();
const source = new Source({
  view: showView,
  lock: showLock,
  asOf(data) {
    fresh(data);
    showCards(data.cards);
  },
  state: showState,
});

/** Ask for what is shown; nothing happens if that is what the stream sends already. */
function request(moment = 0) {
  const { store, key, find: text, prefix, sort } = route;
  const params = { store, find: text, prefix, sort, ...table.window() };
  if (key !== null) Object.assign(params, { key, offset: 0, limit: 1 });
  const same = JSON.stringify(params);
  if (same === asked) return;
  asked = same;
  source.show(params, moment);
}

function follow(moment = 0) {
  const before = route;
  route = parse(location.hash);
  const onLock = route.key !== null;
  find("locks-page").hidden = onLock;
  find("lock-page").hidden = !onLock;
  find("back").setAttribute("href", locksHref());
  if (before?.store !== route.store) {
    forget();
    showStores();
  }
  if (onLock && (before?.key !== route.key || before?.store !== route.store)) {
    lockPage.clear(route.store);
    find("lock-name").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  if (!onLock) {
    document.title = "dibs";
    if (find("filter").value !== route.find) find("filter").value = route.find;
    find("sort").value = route.sort;
    if (before !== null && before.key === null && locksHref(before) !== locksHref()) table.toTop();
    if (before !== null && before.key !== null) find("grid").focus({ preventScroll: true });
  }
  request(moment);
}

/** Nothing of one store is shown as another's. */
function forget() {
  last = asOf = null;
  showState("connecting", "");
  clock.reset();
  table.clear();
  find("cards").replaceChildren();
  find("cards").keyedChildren = undefined;
  for (const id of ["as-of", "matches"]) put(find(id), "");
  for (const id of ["prefixes", "incomplete", "graph-panel", "heat-panel", "pairs-panel", "empty"]) find(id).hidden = true;
  find("grid").hidden = false;
}

function fresh(data) {
  asOf = data.as_of;
  clock.heard(data.as_of);
  showAge();
}

function showAge() {
  if (asOf === null) return;
  const old = clock.secondsSince(asOf);
  put(find("as-of"), `as of ${clockTime(Date.parse(asOf))}${old >= OLD ? `, ${age(old)} ago` : ""}`);
}

function showState(now, sentence) {
  const hears = now === "live" || now === "polling";
  const back = hears && !["live", "polling", "connecting"].includes(state);
  state = now;
  const up = last === null || (last.error === null && last.cards.up);
  const isWell = hears && up;
  put(find("state"), hears && !up ? "the store does not answer" : STATES[now]);
  find("state").className = isWell ? "well" : now === "connecting" ? "" : "unwell";
  document.body.classList.toggle("stale", !isWell);
  showError(sentence || (now === "reconnecting" ? SILENT : last?.error) || "");
  if (back) {
    clock.reset();
    loadStores(); // another process answers, perhaps with other stores and another key for breaks
  }
}

function showError(sentence) {
  find("error").hidden = sentence === "";
  put(find("error"), sentence);
}

function showCards(cards) {
  const latency = Math.max(1, Math.round(atLeastZero(cards.latency) * 1000));
  const isLong = cards.oldest_wait >= LONG_WAIT;
  const shown = [
    ["Held", cards.held.toLocaleString("en"), ""],
    ["Waiting", cards.waiting.toLocaleString("en"), ""],
    ["Oldest wait", cards.waiting > 0 ? duration(cards.oldest_wait) : "–", isLong ? "warn" : ""],
    ["Hand-overs / min", String(Math.round(atLeastZero(cards.handovers_per_minute))), ""],
    ["Leases expired", cards.expired.toLocaleString("en"), cards.expired > 0 ? "warn" : ""],
    ["Store", cards.up ? `up, ${latency} ms` : "down", cards.up ? "" : "bad"],
  ];
  const make = ([title]) => el("div", { class: "card" }, el("dt", { text: title }), el("dd"));
  keyed(find("cards"), shown, ([title]) => title, make, (card, [, value, mood]) => {
    put(card.lastChild, value);
    card.lastChild.className = mood;
  });
}

function showView(view) {
  if (view.store !== route.store) return;
  last = view;
  fresh(view);
  showState(state, "");
  showCards(view.cards);
  find("incomplete").hidden = view.complete;
  if (route.key !== null) return;
  table.show(view, route.sort);
  const searched = route.find || route.prefix;
  put(find("matches"), searched ? `${count(view.total, "lock")} found` : count(view.total, "lock"));
  showPrefixes(view.prefixes);
  showEmpty(view);
  showPanels(view);
}

function showPanels(view) {
  find("graph-panel").hidden = view.graph === null;
  if (view.graph !== null) drawGraph(find("graph"), view.graph, lockHref);
  find("heat-panel").hidden = heatMap(find("heat"), find("heat-axis"), view.heat, lockHref) === 0;
  find("pairs-panel").hidden = view.pairs.length === 0;
  pairTable(find("pairs"), view.pairs);
}

function showPrefixes(prefixes) {
  const nav = find("prefixes");
  nav.hidden = prefixes.length === 0 && route.prefix === "";
  const known = prefixes.some(({ prefix }) => prefix === route.prefix) || route.prefix === "";
  const shown = known ? prefixes : [{ prefix: route.prefix, held: 0, waiting: 0 }, ...prefixes];
  if (!isNew(nav, [shown, locksHref()])) return;
  const item = (prefix, text, figures, parts = 0) => {
    const current = prefix === route.prefix ? "page" : null;
    const attributes = { href: locksHref({ prefix }), "aria-current": current, title: prefix || null };
    const link = el("a", attributes, el("span", { text }), figures);
    link.style.setProperty("--parts", parts);
    return link;
  };
  const figures = ({ held, waiting }) => {
    const words = `${held} held${waiting > 0 ? `, ${waiting} waiting` : ""}`;
    return el("small", { title: words, text: waiting > 0 ? `${held} · ${waiting}` : String(held) });
  };
  const branch = (one) => {
    const parts = one.prefix.match(PART) ?? [one.prefix];
    return item(one.prefix, parts.at(-1), figures(one), parts.length - 1);
  };
  nav.replaceChildren(item("", "All names", ""), ...shown.map(branch));
}

function showEmpty(view) {
  const box = find("empty");
  const searched = route.find !== "" || route.prefix !== "";
  box.hidden = view.total > 0 || view.error !== null;
  find("grid").hidden = !box.hidden;
  if (!isNew(box, searched)) return;
  if (searched) {
    const all = el("a", { href: locksHref({ find: "", prefix: "" }), text: "Show all locks" });
    const none = el("p", { class: "big", text: "No lock that is held or waited for matches." });
    box.replaceChildren(none, el("p", {}, all));
  } else {
    const advice = "A lock appears here as soon as somebody holds it or waits for it. Try, with the URL of this store:";
    const sample = command("a command that takes a lock", "dibs run hello -- sleep 60");
    box.replaceChildren(el("p", { class: "big", text: "No lock is held." }), el("p", { text: advice }), sample);
  }
}

function showLock(data) {
  if (data.key !== route.key) return;
  fresh(data);
  document.title = `${data.name} – dibs`;
  lockPage.show(data);
}

function showStores() {
  const links = stores.map(({ id, name, backend }) => {
    const current = id === route.store ? "true" : null;
    return el("a", { class: "chip", href: `#locks/${id}`, "aria-current": current, title: backend, text: name });
  });
  find("stores").replaceChildren(...links);
  const limits = stores.find(({ id }) => id === route.store)?.limits ?? [];
  find("limits").hidden = limits.length === 0;
  find("limits").lastElementChild.replaceChildren(...limits.map((text) => el("li", { text })));
}

let loading = 0;

async function loadStores() {
  clearTimeout(loading);
  const answer = await ask("api/stores");
  if (answer.data === null) {
    if (route === null) showState(stateAfter(answer), answer.error);
    clearTimeout(loading);
    loading = setTimeout(loadStores, AGAIN);
    return;
  }
  stores = answer.data.stores;
  lockPage.allowBreak(answer.data.allow_break ? answer.data.csrf : null);
  if (route === null) follow();
  else showStores();
}

function replaceRoute(changes) {
  history.replaceState(null, "", locksHref(changes));
  follow(WHILE_TYPING);
}

function pressed(event) {
  const { key, target } = event;
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || route === null || find("break-dialog").open) return;
  if (key === "Escape") escaped(target);
  else if (target === find("filter") && (key === "Enter" || key === "ArrowDown")) {
    event.preventDefault();
    find("grid").focus({ preventScroll: true });
    table.move("ArrowDown");
  } else if (target.closest("input, select, textarea") || find("locks-page").hidden) return;
  else if (key === "/") {
    event.preventDefault();
    find("filter").focus();
  } else if (key === "Enter" && target === find("grid")) table.enter();
  else if ((target === find("grid") || (target === document.body && (key === "j" || key === "k"))) && table.move(key)) {
    event.preventDefault();
    find("grid").focus({ preventScroll: true });
  }
}

function escaped(target) {
  if (route.key !== null) location.hash = locksHref();
  else if (target === find("filter")) {
    if (target.value !== "") replaceRoute({ find: "" });
    find("grid").focus({ preventScroll: true });
  }
}

addEventListener("hashchange", () => follow());
addEventListener("keydown", pressed);
find("filter").addEventListener("input", (event) => replaceRoute({ find: event.target.value }));
find("sort").addEventListener("change", (event) => (location.hash = locksHref({ sort: event.target.value })));
setInterval(() => {
  if (!document.body.classList.contains("stale")) tickAll(); // otherwise the bars would go on as if they were known
  showAge();
}, 1000);
loadStores();
