// Parts that several views have: tables, lists in pages, filters.

import { badge, h, link, name, to, toQuery } from "./dom.js";

export const PAGE = 100;

/** A table. `rows`: arrays of cells; `label`: for those who do not see it. */
export function table(label, heads, rows, nothing = "None.") {
  if (!rows.length) return h("p", { class: "quiet" }, nothing);
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((cells) => h("tr", { "data-key": keyOf(cells[0]) }, cells.map((cell) => h("td", {}, cell))))),
    ),
  );
}

/** The key of a row: focus stays with an entry when others come and go. */
function keyOf(cell) {
  return cell instanceof HTMLAnchorElement ? cell.getAttribute("href") : null;
}

/** A link that the arrow keys reach. */
export function entry(href, text) {
  return link(href, text, { "data-entry": "" });
}

/** Where a piece of a list is, with links to the piece before and the one after; `here(changed)`: their address. */
export function pager(found, here) {
  const offset = found.offset ?? 0;
  const last = offset + found.items.length;
  const turn = (which, at) => h("a", { href: here({ offset: at || "" }), "data-page": which }, which);
  return h(
    "p",
    { class: "quiet", role: "status" },
    found.total ? `${offset + 1} to ${last} of ${found.total}` : "none",
    " ",
    offset > 0 ? turn("previous", Math.max(0, offset - PAGE)) : null,
    " ",
    last < found.total ? turn("next", offset + PAGE) : null,
  );
}

/** A filter and a piece of a long list; `found`: `{items, total, offset}`. */
export function paged(view, query, found, label, heads, row, nothing) {
  return [
    filter([view], query, label.toLowerCase()),
    pager(found, (changed) => toQuery([view], { ...query, ...changed })),
    table(label, heads, found.items.map(row), nothing),
  ];
}

/** A field that narrows a list. */
export function filter(parts, query, label) {
  let timer;
  const narrow = (event) => {
    clearTimeout(timer);
    const q = event.target.value;
    timer = setTimeout(() => location.replace(toQuery(parts, { ...query, q, offset: "" })), 250);
  };
  return h(
    "form",
    { class: "filter", onsubmit: (event) => event.preventDefault() },
    h("label", {}, `Filter ${label} `, h("input", { type: "search", oninput: narrow, maxlength: "200", value: query.q ?? "" })),
  );
}

/** A list of terms and their values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([term, value]) => [
      h("dt", {}, term),
      h("dd", {}, typeof value === "string" || typeof value === "number" ? name(value) : value),
    ]),
  );
}

/** The address of an object's view, of `Kind/namespace/name`; null if the text is none. */
export function objectHref(text) {
  const parts = String(text).split("/");
  return parts.length === 3 && /^[A-Z]/.test(parts[0]) ? to("objects", ...parts) : null;
}

/** An object's name, as a link to its view where it has one. */
export function objectLink(text, props = {}) {
  const href = objectHref(text);
  return href ? link(href, text, props) : name(text);
}

/** Names in a row, of which the first are shown. */
export function names(list, most = 5, shown = name) {
  const some = list.slice(0, most).map((each, index) => [index ? ", " : "", shown(each)]);
  return [some, list.length > most ? ` and ${list.length - most} more` : ""];
}

const MOODS = { SYNCED: "good", WARMING: "bad", STALE: "warn", NACK: "bad", "NOT SENT": "quiet" };

/** The states of the types of a proxy. */
export function states(status) {
  return h(
    "span",
    { class: "states" },
    Object.entries(status ?? {}).map(([type, state]) => badge(state === "SYNCED" ? type : `${type} ${state.toLowerCase()}`, MOODS[state])),
  );
}

/** A time of the API, to the second. */
export function time(text) {
  return text ? h("time", { datetime: text }, text.slice(0, 19).replace("T", " ") + " UTC") : "";
}

/** A number of seconds in words. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** A number of bytes in words. */
export function bytes(count) {
  return count < 1024 ? `${count} B` : count < 1048576 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1048576).toFixed(1)} MiB`;
}

/** JSON as YAML, for people: what was applied looks like that. */
export function yaml(value, indent = "") {
  if (value === null || typeof value !== "object") return scalar(value);
  const inner = indent + "  ";
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return value.map((item) => `\n${indent}- ${nested(item) ? yaml(item, inner).trimStart() : yaml(item, inner)}`).join("");
  }
  const members = Object.entries(value);
  if (!members.length) return "{}";
  return members.map(([member, item]) => `\n${indent}${scalar(member)}: ${yaml(item, inner)}`.replace(/: \n/, ":\n")).join("");
}

function nested(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  return /^[A-Za-z_/.][A-Za-z0-9_./@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|\.nan|\.inf)$/i.test(value)
    ? value
    : JSON.stringify(value);
}

/** A unified diff, or lines of one, each with its mood. */
export function diff(text) {
  const lines = Array.isArray(text) ? text : String(text).split("\n");
  const mood = (line) => (line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "hunk" : "");
  return h("pre", { class: "diff", tabindex: "0" }, lines.slice(0, 2000).map((line) => h("span", { class: mood(line) }, line.slice(0, 2000), "\n")));
}
