// The page: addresses to views, what is refreshed when, the keyboard, the theme.

import { ApiError } from "./api.js";
import { h, morph, to, toQuery } from "./dom.js";
import { listen } from "./live.js";
import { history } from "./history.js";
import { mesh } from "./mesh.js";
import { object, objects } from "./objects.js";
import { overview, remember } from "./overview.js";
import { proxies, proxy, resource } from "./proxies.js";
import { search } from "./search.js";
import { service, services } from "./services.js";
import { why } from "./why.js";

const REFRESH_MS = 2000;

/** By first part and number of parts of the address. `title`, `show(parts, query, signal)`, `live`: false for forms. */
const VIEWS = {
  "/0": { title: "Overview", show: overview },
  "services/1": { title: "Services", show: services },
  "services/3": { title: "Service", show: service },
  "proxies/1": { title: "Proxies", show: proxies },
  "proxies/2": { title: "Proxy", show: proxy },
  "proxies/4": { title: "Resource", show: resource },
  "objects/1": { title: "Objects", show: objects },
  "objects/4": { title: "Object", show: object },
  "mesh/1": { title: "Mesh", show: mesh },
  "history/1": { title: "History", show: history },
  "history/2": { title: "Revision", show: history },
  "why/1": { title: "What would a request meet?", show: why, live: false },
  "search/1": { title: "Search", show: search },
};

const NAV = [
  ["Overview", "#/", "o"],
  ["Services", "#/services", "s"],
  ["Proxies", "#/proxies", "p"],
  ["Objects", "#/objects", "b"],
  ["Mesh", "#/mesh", "m"],
  ["History", "#/history", "h"],
  ["Why", "#/why", "w"],
];

let main;
let status;
let shownAt = "";
let running = null;
let refreshAt = 0;
let waiting = null;

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

async function show(refresh) {
  const { parts, query } = address();
  const view = VIEWS[`${parts[0] ?? ""}/${parts.length}`];
  const at = location.hash;
  if (refresh && (running || view?.live === false)) return;
  running?.abort();
  const own = new AbortController();
  running = own;
  refreshAt = Date.now();
  if (!refresh) main.setAttribute("aria-busy", "true");
  let body;
  try {
    body = view ? await view.show(parts, query, own.signal) : [h("h1", {}, "There is no such view"), keys()];
  } catch (error) {
    if (own.signal.aborted) return;
    if (refresh && !(error instanceof ApiError && error.status === 404)) {
      say(`${error.message}; what is shown is older`, "bad");
      return;
    }
    if (!(error instanceof ApiError)) console.error(error);
    body = [h("h1", {}, view.title), h("p", { class: "bad", role: "alert" }, error.message)];
  } finally {
    if (running === own) running = null;
  }
  if (own.signal.aborted) return;
  const fresh = h("main", { id: "main", tabindex: "-1", "data-view": at || "#/" }, body);
  document.title = `${fresh.querySelector("h1")?.textContent.slice(0, 120) ?? ""} · mesh-pilot`;
  // What the file had, and the parts of another view, are not to be kept.
  if (shownAt.split("?")[0] === at.split("?")[0] && shownAt !== "") {
    morph(main, fresh);
  } else {
    main.replaceWith(fresh);
    main = fresh;
    if (shownAt !== "" && document.activeElement?.id !== "search") main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  shownAt = at || "#/";
  for (const item of document.querySelectorAll("nav a[data-nav]")) {
    if (item.getAttribute("href") === to(...parts.slice(0, 1))) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
}

/** Refresh soon: several events make one refresh, and none comes within two seconds of the one before. */
function refreshSoon() {
  if (waiting) return;
  waiting = setTimeout(
    () => {
      waiting = null;
      if (running) refreshSoon();
      else show(true);
    },
    Math.max(200, refreshAt + REFRESH_MS - Date.now()),
  );
}

function say(text, mood) {
  status.textContent = text;
  status.className = `live ${mood}`;
}

function told(kind, data) {
  remember(kind, data);
  refreshSoon();
}

// -- the frame

function frame() {
  const input = h("input", {
    id: "search",
    type: "search",
    placeholder: "Search ( / )",
    "aria-label": "Search services, objects and proxies",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "200",
    oninput: debounced((event) => {
      const q = event.target.value.trim();
      if (q) go(toQuery(["search"], { q }), address().parts[0] === "search");
    }),
  });
  status = h("span", { class: "live", role: "status" }, "connecting");
  const theme = h("button", { type: "button", id: "theme", onclick: nextTheme }, "Theme");
  const help = h("button", { type: "button", onclick: toggleKeys, "aria-haspopup": "dialog" }, "Keys");
  const nav = h(
    "nav",
    { "aria-label": "Views" },
    NAV.map(([text, href, letter]) =>
      h("a", { href, "data-nav": "", "aria-keyshortcuts": `g ${letter}`, title: `g ${letter}` }, text),
    ),
  );
  const header = h(
    "header",
    {},
    h("a", { class: "skip", href: "#main", onclick: skip }, "Skip to the content"),
    h("a", { class: "brand", href: "#/" }, "mesh-pilot"),
    nav,
    h("form", { role: "search", onsubmit: searched }, input),
    status,
    theme,
    help,
  );
  document.body.prepend(header);
  document.body.append(h("dialog", { id: "keys", "aria-labelledby": "keys-title" }, keys()));
  document.documentElement.classList.add("app");
}

function skip(event) {
  event.preventDefault();
  main.focus();
}

function searched(event) {
  event.preventDefault();
  const q = document.getElementById("search").value.trim();
  if (q) go(toQuery(["search"], { q }), false);
}

function go(href, replaces) {
  if (replaces) location.replace(href);
  else location.hash = href.slice(1);
}

function debounced(call) {
  let timer;
  return (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(event), 250);
  };
}

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  const button = document.getElementById("theme");
  if (button) button.textContent = `Theme: ${theme}`;
}

function nextTheme() {
  const themes = ["auto", "light", "dark"];
  const next = themes[(themes.indexOf(storedTheme()) + 1) % themes.length];
  localStorage.setItem("theme", next);
  setTheme(next);
}

function storedTheme() {
  const theme = localStorage.getItem("theme");
  return theme === "light" || theme === "dark" ? theme : "auto";
}

// -- the keyboard

function keys() {
  const rows = [
    ["/", "search"],
    ...NAV.map(([text, , letter]) => [`g ${letter}`, text]),
    ["↓ ↑ or j k", "next and previous entry of a list"],
    ["Enter", "open the entry"],
    ["[ ]", "previous and next part of a long list"],
    ["t", "theme"],
    ["?", "these keys"],
  ];
  return [
    h("h2", { id: "keys-title" }, "Keys"),
    h(
      "table",
      {},
      h("tbody", {}, rows.map(([pressed, text]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, pressed)), h("td", {}, text)))),
    ),
    h("form", { method: "dialog" }, h("button", {}, "Close")),
  ];
}

function toggleKeys() {
  const dialog = document.getElementById("keys");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

let prefix = false;

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target;
  const typing = at instanceof HTMLElement && at.matches("input, textarea, select");
  if (event.key === "ArrowDown" && at.id === "search") move(event, 1);
  if (typing) {
    if (event.key === "Escape") at.blur();
    return;
  }
  if (prefix) {
    prefix = false;
    const found = NAV.find(([, , letter]) => letter === event.key);
    if (found) {
      event.preventDefault();
      go(found[1], false);
    }
    return;
  }
  const actions = {
    "/": () => document.getElementById("search").focus(),
    g: () => (prefix = true),
    j: () => move(event, 1),
    k: () => move(event, -1),
    ArrowDown: () => move(event, 1),
    ArrowUp: () => move(event, -1),
    "[": () => main.querySelector("[data-page=previous]")?.click(),
    "]": () => main.querySelector("[data-page=next]")?.click(),
    t: nextTheme,
    "?": toggleKeys,
  };
  if (!actions[event.key] || document.getElementById("keys").open) return;
  const before = document.activeElement;
  const isArrow = event.key.startsWith("Arrow");
  actions[event.key]();
  if (!isArrow || before !== document.activeElement) event.preventDefault();
}

/** Focus the entry after (1) or before (-1) the one in focus; the first if none is. */
function move(event, by) {
  const entries = [...main.querySelectorAll("[data-entry]")];
  if (!entries.length) return;
  const at = entries.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : -1) : at + by;
  if (next >= 0 && next < entries.length) entries[next].focus();
}

// -- start

main = document.getElementById("main");
setTheme(storedTheme());
frame();
setTheme(storedTheme());
addEventListener("hashchange", () => show(false));
addEventListener("keydown", pressed);
await show(false);
listen(told, (is) => {
  say(is ? "live" : "not connected", is ? "good" : "bad");
  if (is) refreshSoon(); // what happened since the view was read
});
