// Elements: all text is set as text, never as HTML, so that no name of the mesh is more than a name.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes; functions under `onclick` and the like; `null` and `false` leave one out. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An element of SVG. */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function* flat(children) {
  for (const child of children) {
    if (Array.isArray(child)) yield* flat(child);
    else if (child instanceof Node) yield child;
    else if (child !== null && child !== undefined && child !== false) yield document.createTextNode(String(child));
  }
}

const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown"];

/** Makes `old` what `fresh` is with as few changes as possible: focus, scrolling and open parts stay. */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  const keyed = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = key(child) ? keyed.get(key(child)) : at && !key(at) ? at : null;
    if (!same) {
      old.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    morph(same, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

/** The address of a view: `#/` and its parts, each escaped. */
export function to(...parts) {
  return "#/" + parts.map((part) => encodeURIComponent(wellFormed(part))).join("/");
}

/** The same with a query. */
export function toQuery(parts, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, wellFormed(value)])).toString();
  return to(...parts) + (text ? "?" + text : "");
}

function wellFormed(text) {
  return String(text).replace(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g, "\uFFFD");
}

/** A name as text: in a direction of its own, and cut where it is long, with all of it in a tooltip. */
export function name(text, most = 300) {
  const shown = String(text ?? "");
  const cut = shown.length > most;
  return h("bdi", { title: cut ? shown.slice(0, 2000) : null }, cut ? shown.slice(0, most) + "…" : shown);
}

/** A link to a view with a name as its text. */
export function link(href, text, props) {
  return h("a", { href, ...props }, name(text));
}

/** A short word with a mood: `good`, `bad`, `warn` or `quiet`. */
export function badge(text, mood) {
  return h("span", { class: `badge ${mood ?? ""}` }, name(text, 80));
}

/** A place such as `a.yaml:7`. */
export function place(where) {
  return where ? h("span", { class: "place" }, name(where)) : null;
}
