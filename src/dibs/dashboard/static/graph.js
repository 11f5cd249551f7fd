// The wait-for graph. It reads from left to right: a waiter, the lock it waits for, the holder of that lock, and so on.
// The same graph has the same picture: places follow from the order of ids alone.

import { el, isNew, svg } from "./dom.js";
import { count } from "./words.js";

const BOX = { width: 190, height: 30, across: 70, down: 14, edge: 6, side: 48 };
const MOST_NODES = 60;
const MOST_LETTERS = 26;

/** The nodes that a node waits for: an owner its locks, a lock its holders. */
function successors(graph) {
  const next = new Map(graph.nodes.map((node) => [node.id, []]));
  for (const { from, to, kind } of graph.edges) {
    const [tail, head] = kind === "waits" ? [from, to] : [to, from];
    if (next.has(tail) && next.has(head)) next.get(tail).push(head);
  }
  return next;
}

function reachable(next, start) {
  const seen = new Set();
  const open = [...next.get(start)];
  while (open.length > 0) {
    const id = open.pop();
    if (!seen.has(id)) {
      seen.add(id);
      open.push(...next.get(id));
    }
  }
  return seen;
}

/** The length of each node's longest chain; an edge that closes a cycle does not count. */
function columns(ids, next) {
  const depth = new Map();
  const walk = (id, path) => {
    if (depth.has(id)) return depth.get(id);
    path.add(id);
    const beyond = next.get(id).filter((to) => !path.has(to)).map((to) => walk(to, path) + 1);
    path.delete(id);
    depth.set(id, Math.max(0, ...beyond));
    return depth.get(id);
  };
  for (const id of ids) walk(id, new Set());
  return depth;
}

function places(ids, next) {
  const depth = columns(ids, next);
  const deepest = Math.max(...depth.values());
  const found = new Map();
  const rows = [];
  for (let column = 0; column <= deepest; column += 1) {
    const inIt = ids.filter((id) => depth.get(id) === column);
    const middle = (id) => {
      const known = next.get(id).filter((to) => found.has(to)).map((to) => found.get(to).row);
      return known.length > 0 ? known.reduce((sum, row) => sum + row, 0) / known.length : 0;
    };
    const sorted = inIt.map((id, i) => ({ id, i, at: middle(id) })).sort((a, b) => a.at - b.at || a.i - b.i);
    sorted.forEach(({ id }, row) => found.set(id, { column: deepest - column, row }));
    rows.push(sorted.length);
  }
  return { found, columns: deepest + 1, rows: Math.max(...rows) };
}

const shortened = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);

/** An edge to the right is a curve; one back, which closes a cycle, goes around below the boxes. */
function line(from, to, bottom) {
  const [x1, y1] = [from.x + BOX.width, from.y + BOX.height / 2];
  const [x2, y2] = [to.x, to.y + BOX.height / 2];
  if (x2 > x1) {
    const half = (x2 - x1) / 2;
    return `M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2 - 4} ${y2}`;
  }
  const [right, left] = [x1 + BOX.side, x2 - BOX.side];
  const down = `M${x1} ${y1}C${right} ${y1} ${right} ${bottom} ${x1} ${bottom}`;
  return `${down}H${x2}C${left} ${bottom} ${left} ${y2} ${x2 - 4} ${y2}`;
}

export function drawGraph(parent, graph, href) {
  if (!isNew(parent, [graph, href("")])) return;
  const nodes = graph.nodes.slice(0, MOST_NODES);
  const shown = new Set(nodes.map((node) => node.id));
  const edges = graph.edges.filter(({ from, to }) => shown.has(from) && shown.has(to));
  const next = successors({ nodes, edges });
  const ids = nodes.map((node) => node.id).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const reach = new Map(ids.map((id) => [id, reachable(next, id)]));
  const together = (a, b) => reach.get(a).has(b) && reach.get(b).has(a);
  const layout = places(ids, next);
  const point = (id) => {
    const { column, row } = layout.found.get(id);
    return { x: BOX.side + column * (BOX.width + BOX.across), y: BOX.edge + row * (BOX.height + BOX.down) };
  };
  const width = 2 * BOX.side + layout.columns * (BOX.width + BOX.across) - BOX.across;
  const bottom = BOX.edge + layout.rows * (BOX.height + BOX.down);
  const height = bottom + BOX.edge;
  const kinds = ["owner", "lock"].map((kind) => count(nodes.filter((node) => node.kind === kind).length, kind));
  const words = `${kinds.join(", ")}, ${count(graph.cycles.length, "cycle")}. The list below says the same in words.`;
  const view = { width, height, viewBox: `0 0 ${width} ${height}` };
  const picture = svg("svg", { class: "graph", role: "img", "aria-label": words, ...view });
  for (const { from, to, kind } of edges) {
    const [tail, head] = kind === "waits" ? [from, to] : [to, from];
    const [start, end] = [point(tail), point(head)];
    const mood = together(tail, head) ? "cycle" : "";
    picture.append(
      svg("path", { class: `edge ${kind} ${mood}`, d: line(start, end, bottom) }),
      svg("path", { class: `arrow ${mood}`, d: `M${end.x} ${end.y + BOX.height / 2}l-9 -4.5v9z` }),
    );
  }
  for (const node of nodes) {
    const { x, y } = point(node.id);
    const rx = node.kind === "owner" ? BOX.height / 2 : 5;
    const box = svg("rect", { x, y, width: BOX.width, height: BOX.height, rx });
    const text = svg("text", { x: x + BOX.width / 2, y: y + BOX.height / 2, text: shortened(node.text) });
    const kind = `node ${node.kind}${together(node.id, node.id) ? " cycle" : ""}`;
    const group = svg("g", { class: kind }, box, text, svg("title", { text: node.text }));
    picture.append(node.key ? svg("a", { href: href(node.key), tabindex: "-1" }, group) : group);
  }
  const named = new Map(graph.nodes.map((node) => [node.id, node.text]));
  const sentence = ({ from, to, kind }) =>
    el("li", { text: `${named.get(from)} ${kind === "waits" ? "waits for" : "holds"} ${named.get(to)}` });
  const hidden = graph.nodes.length - nodes.length;
  parent.replaceChildren(
    el("ul", { class: "cycles" }, ...graph.cycles.map((text) => el("li", { text: `Probable deadlock: ${text}` }))),
    el("div", { class: "scrolls", tabindex: "0", role: "group", "aria-labelledby": "graph-title" }, picture),
    el("p", { class: "note", text: hidden > 0 ? `${hidden} more are not drawn.` : "" }),
    el("details", {}, el("summary", { text: "In words" }), el("ul", { class: "edges" }, ...graph.edges.map(sentence))),
  );
}
