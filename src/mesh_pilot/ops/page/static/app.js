// The frame: addresses to views, what is read again when, the header, the keyboard, the theme.

import { ApiError, get, login } from "./api.js";
import { Name, Skeleton } from "./components.js";
import { html, parsed, render, signal, toQuery, useEffect, useErrorBoundary, useRef } from "./lib.js";
import { OLD_MS, contact, isOld, listen, noteTime, planeTime, seesAll, turns, visitor } from "./live.js";
import { MOVED, PLACES } from "./places.js";
import { clock, number, plain } from "./text.js";
import { viewOf } from "./views.js";

const REFRESH_MS = 2000;

/** A view is read again after so long without an event, too: what is late, or expires, does so without one. */
const QUIET_MS = 15000;

/** What `/now` says of the control plane itself, with the revision of the last beat. */
const plane = signal({});
const shown = signal({ parts: [], query: {}, hash: "", data: null, error: null, isBusy: true });

let running = null;
let refreshedAt = 0;
let waiting = null;

// -- views

async function show(isRefresh) {
  const { parts, query } = parsed(location.hash);
  if (parts[0] in MOVED) {
    const rest = location.hash.replace(/^#\/[^/?]*/, "");
    location.replace(`#/${MOVED[parts[0]]}${rest}`.replace(/\/$/, "/"));
    return;
  }
  const view = viewOf(parts);
  const hash = location.hash || "#/";
  const before = shown.get();
  if (isRefresh && (running || (view?.isLive === false && !before.error))) return;
  running?.abort();
  const own = new AbortController();
  running = own;
  refreshedAt = Date.now();
  if (!isRefresh) leave();
  if (!isRefresh) shown.set({ ...before, isBusy: true });
  let next;
  try {
    const data = view ? await (view.load?.(parts, query, own.signal) ?? {}) : {};
    next = { parts, query, hash, data, error: null, isBusy: false };
    if (data?.plane) planeIs(data.plane);
  } catch (error) {
    if (own.signal.aborted) return;
    if (!(error instanceof ApiError)) console.error(error);
    // What is shown stays: how old it is, the header says.
    if (isRefresh && error.status === 0) return;
    next = { parts, query, hash, data: null, error, isBusy: false };
  } finally {
    if (running === own) running = null;
  }
  if (own.signal.aborted) return;
  shown.set(next);
  turns.set(turns.get() + 1);
  if (!isRefresh) queueMicrotask(() => arrive(before));
}

/** Read again soon: several events make one refresh, and none comes within two seconds of the one before. */
function refreshSoon() {
  waiting ??= setTimeout(
    () => {
      waiting = null;
      if (running) refreshSoon();
      else show(true);
    },
    Math.max(200, refreshedAt + REFRESH_MS - Date.now()),
  );
}

function planeIs(found) {
  plane.set({ ...plane.get(), ...found });
  if (found.data_at) noteTime(found.data_at);
}

function told(kind, data) {
  if (kind === "over") {
    login();
  } else if (kind === "beat") {
    const isOther = plane.get().boot && data.boot !== plane.get().boot;
    plane.set({ ...plane.get(), revision: data.revision, boot: data.boot });
    const quietMs = viewOf(shown.get().parts)?.quietMs ?? QUIET_MS;
    if (isOther || shown.get().error || Date.now() - refreshedAt > quietMs) refreshSoon();
  } else if (kind === "poll") {
    refreshSoon();
    get(["now"]).then((found) => planeIs(found.plane), () => {});
  } else {
    if (kind === "revision") plane.set({ ...plane.get(), revision: data.revision });
    refreshSoon();
  }
}

// -- back to the same row: where each entry of the browser's history was left

const places = new Map();
let at = "";

function leave() {
  const entry = document.activeElement?.closest?.("#main a");
  places.set(at, { y: scrollY, href: entry?.getAttribute("href") });
}

function arrive(before) {
  const isSame = before.parts.join("/") === shown.get().parts.join("/") && before.hash !== "";
  const known = history.state?.at !== undefined ? places.get(history.state.at) : null;
  at = history.state?.at ?? `${Date.now()}${Math.random()}`;
  if (history.state?.at === undefined) history.replaceState({ at }, "");
  document.title = `${plain(document.querySelector("h1")?.textContent ?? "").slice(0, 120)} · mesh-pilot`;
  const main = document.getElementById("main");
  if (isSame && !known) return;
  scrollTo(0, known?.y ?? 0);
  if (before.hash === "" || document.activeElement?.id === "search") return;
  const entry = known?.href ? main.querySelector(`a[href="${CSS.escape(known.href)}"]`) : null;
  (entry ?? main).focus({ preventScroll: true });
}

// -- the frame

function App() {
  const own = shown.use();
  const old = isOld.use();
  const view = viewOf(own.parts);
  const place = PLACES.find(({ id }) => id === view?.place);
  useEffect(() => {
    document.documentElement.toggleAttribute("data-old", old);
  }, [old]);
  return html`
    <header class="top">
      <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
      <${Brand} />
      <nav class="places" aria-label="Places">
        ${PLACES.map(
          ({ id, text, href, key }) =>
            html`<a key=${id} href=${href} aria-current=${id === place?.id ? (location.hash === href ? "page" : "true") : null} aria-keyshortcuts=${`g ${key}`} title=${`g ${key}`}>${text}</a>`,
        )}
      </nav>
      <${SearchField} />
      <${Pulse} />
      <${Menu} />
    </header>
    <p class="notice" role="status">${old ? html`The control plane has not answered since ${clock(new Date(contact.get()))}. What is shown is of then.` : ""}</p>
    ${place?.tabs ? html`<${Tabs} place=${place} parts=${own.parts} />` : null}
    <main id="main" tabindex="-1" data-view=${own.hash} aria-busy=${own.isBusy ? "true" : null}>
      ${own.error ? html`<${Failed} error=${own.error} view=${view} />` : html`<${Shown} key=${own.parts.join("/")} view=${view} own=${own} />`}
    </main>
    <${Keys} />
    <div id="tip" role="tooltip" hidden></div>
  `;
}

function Shown({ view, own }) {
  const [broken, fix] = useErrorBoundary((error) => console.error(error));
  useEffect(() => fix(), [own.data]); // the next answer may be one that can be shown
  if (broken) return html`<${Failed} error=${broken} view=${view} />`;
  if (own.data === null) return html`<${Skeleton} />`;
  if (!view) return html`<h1>There is no such view</h1><p><a href="#/">Now</a> has what is going on.</p>`;
  return html`<${view.show} data=${own.data} parts=${own.parts} query=${own.query} />`;
}

function Failed({ error, view }) {
  const [title, hint] =
    error.status === 404
      ? ["Not found", ""]
      : error.status === 0
        ? ["No answer", "It is asked again as soon as it answers."]
        : [view?.title ?? "Something is wrong", ""];
  return html`<h1>${title}</h1>
    <p class="failed" role="alert"><${Name} text=${error.message} most=${1000} /></p>
    ${hint ? html`<p class="quiet">${hint}</p>` : null}`;
}

function Brand() {
  const { name } = plane.use();
  return html`<a class="brand" href="#/" title=${name ? `mesh-pilot ${plain(name)}` : null}
    ><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M3 12.5 8 2l5 10.5-5-2.6Z" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linejoin="round" /></svg
    ><b><${Name} text=${name || "mesh-pilot"} most=${40} /></b
  ></a>`;
}

function Tabs({ place, parts }) {
  const own = `#/${parts[0] ?? ""}`;
  return html`<nav class="tabs" aria-label=${place.text}>
    ${place.tabs.map(
      ([text, href, key]) => html`<a key=${href} href=${href} aria-current=${href === own ? (parts.length === 1 ? "page" : "true") : null} aria-keyshortcuts=${`g ${key}`}>${text}</a>`,
    )}
  </nav>`;
}

/** Of when what is shown is, and how the control plane is doing. */
function Pulse() {
  const { revision } = plane.use();
  const heard = contact.use();
  const old = isOld.use();
  const title = old
    ? "The control plane does not answer."
    : `The control plane answers; everything turns grey when it has not for ${OLD_MS / 1000} s.`;
  return html`<p class=${`pulse ${old ? "old" : "live"}`} title=${title}>
    ${revision === undefined ? null : html`<a class="revision" href=${`#/changes/${revision}`}>revision ${revision}</a>`}
    <span class="of"><span class="of-data">data of </span>${heard ? clock(new Date(planeTime() - Date.now() + heard)) : "…"}</span>
    <i aria-hidden="true"></i><span class="unseen">${old ? "not connected" : "live"}</span>
  </p>`;
}

function Menu() {
  const who = visitor.use();
  const roles = who ? rolesOf(who) : "";
  const own = useRef(null);
  const close = () => own.current?.removeAttribute("open");
  return html`<details class="menu" ref=${own} onFocusOut=${(event) => own.current.contains(event.relatedTarget) || !event.relatedTarget || close()}>
    <summary aria-label=${who ? `Menu of ${plain(who.name)}, role ${roles}` : "Menu"}>
      <span class="who">${who ? html`<${Name} text=${who.name} most=${24} /> <span class="quiet">(${who.role ?? "some namespaces"})</span>` : "Menu"}</span><span class="burger" aria-hidden="true">☰</span>
    </summary>
    <div>
      ${who ? html`<p><b><${Name} text=${who.name} most=${60} /></b><br /><span class="quiet">role ${roles}, by ${who.how}</span></p>` : null}
      <p class="themes" role="group" aria-label="Theme"><${Themes} /></p>
      <p><button type="button" onClick=${() => (close(), toggleKeys())}>Keys <kbd>?</kbd></button></p>
      ${seesAll(who) ? html`<p><a href="/debug">Debug pages</a></p>` : null}
      ${who?.may_log_out ? html`<form method="post" action="/logout"><button>Log out</button></form>` : null}
    </div>
  </details>`;
}

/** The roles of whoever looks, in words. */
function rolesOf(who) {
  return who.role ?? Object.keys(who.roles).sort().map((each) => `${who.roles[each]} in ${each}`).join(", ");
}

const theme = signal(storedTheme());

function Themes() {
  const own = theme.use();
  return ["auto", "light", "dark"].map(
    (each) => html`<button type="button" key=${each} aria-pressed=${String(each === own)} onClick=${() => setTheme(each)}>${each}</button>`,
  );
}

function storedTheme() {
  const stored = localStorage.getItem("theme");
  return stored === "light" || stored === "dark" ? stored : "auto";
}

function setTheme(next) {
  localStorage.setItem("theme", next);
  if (next === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", next);
  theme.set(next);
}

function nextTheme() {
  const themes = ["auto", "light", "dark"];
  setTheme(themes[(themes.indexOf(storedTheme()) + 1) % themes.length]);
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function go(href, replaces = false) {
  if (replaces) location.replace(href);
  else location.hash = href.slice(1);
}

// -- search

function SearchField() {
  const own = shown.use();
  const field = useRef(null);
  const timer = useRef(null);
  const asked = own.parts[0] === "search" ? (own.query.q ?? "") : "";
  useEffect(() => {
    if (document.activeElement !== field.current) field.current.value = asked;
  }, [asked, own.hash]);
  const search = () => {
    clearTimeout(timer.current);
    const q = field.current.value.trim();
    if (q) go(toQuery(["search"], { q }), parsed(location.hash).parts[0] === "search");
  };
  function typed() {
    clearTimeout(timer.current);
    timer.current = setTimeout(search, 250);
  }
  function submitted(event) {
    event.preventDefault();
    search();
  }
  return html`<form role="search" onSubmit=${submitted}>
    <input
      id="search"
      ref=${field}
      type="search"
      placeholder="Search  /"
      aria-label="Search services, objects and proxies"
      aria-keyshortcuts="/"
      autocomplete="off"
      spellcheck="false"
      maxlength="200"
      onInput=${typed}
      onFocus=${(event) => event.target.select()}
    />
  </form>`;
}

// -- the keyboard

const GO = new Map([
  ...PLACES.flatMap(({ key, href, tabs = [] }) => [[key, href], ...tabs.map(([, link, own]) => [own, link])]),
  ["o", "#/"],
  ["h", "#/changes"],
]);

function Keys() {
  const rows = [
    ["/", "search"],
    ...PLACES.flatMap(({ key, text, tabs = [] }) => [[`g ${key}`, text], ...tabs.map(([own, , letter]) => [`g ${letter}`, own])]),
    ["↓ ↑ or j k", "next and previous entry of a list"],
    ["Enter", "open the entry"],
    ["[ ]", "previous and next part of a long list"],
    ["t", "theme"],
    ["?", "these keys"],
  ];
  return html`<dialog id="keys" aria-labelledby="keys-title">
    <h2 id="keys-title">Keys</h2>
    <table>
      <tbody>
        ${rows.map(
          ([pressed, text]) => html`<tr key=${pressed}><th scope="row"><kbd>${pressed}</kbd></th><td>${text}</td></tr>`,
        )}
      </tbody>
    </table>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;
}

function toggleKeys() {
  const dialog = document.getElementById("keys");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

let isPrefixed = false;

/** What a key does where nobody types; the arrows move within lists only, and scroll elsewhere. */
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const on = event.target;
  if (event.key === "Escape") hideTip();
  if (event.key === "ArrowDown" && on.id === "search") move(event, 1);
  if (on instanceof HTMLElement && on.matches("input, textarea, select")) {
    if (event.key === "Escape") on.blur();
    return;
  }
  if (isPrefixed) {
    isPrefixed = false;
    if (GO.has(event.key)) {
      event.preventDefault();
      go(GO.get(event.key));
    }
    return;
  }
  const actions = {
    "/": () => document.getElementById("search").focus(),
    g: () => (isPrefixed = true),
    j: () => move(event, 1),
    k: () => move(event, -1),
    ArrowDown: () => move(event, 1),
    ArrowUp: () => move(event, -1),
    "[": () => document.querySelector("main [data-page=previous]")?.click(),
    "]": () => document.querySelector("main [data-page=next]")?.click(),
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
  const entries = [...document.querySelectorAll("main [data-entry]")];
  if (!entries.length) return;
  const on = entries.indexOf(document.activeElement);
  const next = on < 0 ? (by > 0 ? 0 : -1) : on + by;
  if (next >= 0 && next < entries.length) entries[next].focus();
}

// -- links that are filters leave no trace in the history; the pager's lead to the list's top

function clicked(event) {
  const link = event.target.closest?.("a[data-replace], a[data-top]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (link.dataset.replace !== undefined) {
    event.preventDefault();
    go(link.getAttribute("href"), true);
  }
  if (link.dataset.top !== undefined) scrollTo(0, 0);
}

// -- words that explain themselves

function showTip(event) {
  const word = event.target.closest?.("[data-tip]");
  if (!word) return hideTip();
  const tip = document.getElementById("tip");
  tip.textContent = word.dataset.tip;
  tip.hidden = false;
  const box = word.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  word.setAttribute("aria-describedby", "tip");
}

function hideTip() {
  document.getElementById("tip").hidden = true;
  for (const word of document.querySelectorAll("[aria-describedby=tip]")) word.removeAttribute("aria-describedby");
}

// -- start

history.scrollRestoration = "manual";
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
document.documentElement.classList.add("app");
addEventListener("hashchange", () => show(false));
addEventListener("keydown", pressed);
addEventListener("click", clicked);
for (const kind of ["focusin", "pointerover", "click"]) addEventListener(kind, showTip);
addEventListener("focusout", hideTip);
addEventListener("scroll", hideTip, { passive: true });
get(["whoami"]).then(visitor.set, () => {});
if (parsed(location.hash).parts.length) get(["now"]).then((found) => planeIs(found.plane), () => {});
await show(false);
listen(told);
