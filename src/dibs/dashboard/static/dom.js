// Elements by DOM calls only. Names, owners and info come from strangers: they never become markup or an address.

const SVG = "http://www.w3.org/2000/svg";

function dress(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const el = (tag, attributes = {}, ...children) => dress(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  dress(document.createElementNS(SVG, tag), attributes, children);
export const find = (id) => document.getElementById(id);

/** Set a text only if it differs: an unchanged node keeps the reader's selection, and a live region stays silent. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show the items as children of a parent, in their order. An element lives as long as its key. */
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.keyedChildren ?? (parent.keyedChildren = new Map());
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  for (const [key, child] of known) {
    if (!wanted.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
  let next = parent.firstChild;
  for (const [key, item] of wanted) {
    let child = known.get(key);
    if (child === undefined) known.set(key, (child = make(item)));
    update(child, item);
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
}

/** True the first time, and whenever the data of that node differ from those of the last call. */
export function isNew(node, data) {
  const text = JSON.stringify(data);
  if (node.drawnFrom === text) return false;
  node.drawnFrom = text;
  return true;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS there is no clipboard, except on loopback.
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
  return true;
}

/** A command line with a button that copies it. */
export function command(label, text = "") {
  const code = el("code", { text });
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${label}`, text: "Copy" });
  button.addEventListener("click", async () => {
    const focused = document.activeElement;
    const copied = await copy(code.textContent);
    focused?.focus();
    put(button, copied ? "Copied" : "Select and copy it");
    setTimeout(() => put(button, "Copy"), 2000);
  });
  return el("p", { class: "command" }, code, button);
}
