// The overview: what is wrong now comes first.

import { get, maybe } from "./api.js";
import { badge, h, link, name, place, to } from "./dom.js";
import { bytes, duration, facts, names, objectLink, table, time } from "./parts.js";

const SHOWN = 50;
const EVENTS = 12;
const ANALYSIS_MS = 5000;
const recent = [];

/** Keeps an event for the list of what happened since the page was opened. */
export function remember(kind, data) {
  if (kind === "sync" || kind === "reset") return;
  recent.unshift({ kind, data, at: new Date().toISOString() });
  recent.length = Math.min(recent.length, EVENTS);
}

/** The groups of `/rejections`, the worst first: title, mood, and the parts of an entry. */
const GROUPS = {
  internal: ["Internal errors", "bad", (e) => [`${e.type} ${e.resource}`, e.consequence, e.error, e]],
  configs: ["Refused objects", "bad", (e) => [e.object, e.field, e.reason, e]],
  conditions: ["Gateway API", "bad", (e) => [e.object, e.field, e.reason, e]],
  taken_back: ["Taken back by a rollout", "bad", (e) => [e.object, "", e.reason, e]],
  quarantined: ["Withheld from proxies", "bad", (e) => [e.object, e.from, e.reason, e]],
  proxies: ["Refused by proxies", "bad", (e) => [e.proxy, `${e.type} ${(e.resources ?? []).slice(0, 3).join(", ")}`, e.reason, e]],
  held: ["Refusals that nothing is done about", "bad", (e) => [e.proxy, e.type, `${e.held}: ${e.reason}`, e]],
  sources: ["Sources", "bad", (e) => [e.source, "", e.reason ?? e.condition ?? e.error ?? "", e]],
  authorization: ["Requests denied: authorization provider unavailable", "bad", (e) => [(e.objects ?? []).join(", "), "", e.reason, e]],
  credentials: ["Credentials withheld", "bad", (e) => [e.credential, "", e.reason, e]],
  patches: ["Patches without effect", "warn", (e) => [e.object, e.field, e.reason, e]],
  listeners: ["Listener conflicts", "warn", (e) => [e.listener, `${e.dropped} gave way to ${e.kept}`, e.reason, e]],
  trials: ["Trials", "warn", (e) => [(e.objects ?? []).join(", "), e.proxy, e.reason, e]],
  warnings: ["Warnings", "warn", (e) => [e.object, e.field, e.reason, e]],
};

/** What an entry is about, as a link where there is a view of it. */
function subject(group, text) {
  if (["proxies", "held"].includes(group)) return link(to("proxies", text), text);
  return objectLink(text);
}

function problems(rejections) {
  const more = rejections.more ?? {};
  return Object.entries(GROUPS).flatMap(([group, [title, mood, parts]]) => {
    const entries = rejections[group] ?? [];
    if (!entries.length) return [];
    const total = entries.length + (more[group] ?? 0);
    const rows = entries.slice(0, SHOWN).map((each) => {
      const [about, detail, reason] = parts(each);
      return h(
        "li",
        {},
        h("span", { class: "about" }, subject(group, about ?? "")),
        detail ? h("span", { class: "detail" }, name(detail)) : null,
        h("span", { class: "reason" }, name(each.error && !reason ? each.error : (reason ?? ""), 1000)),
        place(each.where),
        each.proxies?.length ? h("span", { class: "quiet" }, "proxies: ", names(each.proxies, 3)) : null,
      );
    });
    return h(
      "section",
      { class: `problems ${mood}`, "data-key": group },
      h("h3", {}, title, " ", badge(total, mood)),
      h("ul", {}, rows),
      total > rows.length ? h("p", { class: "quiet" }, `and ${total - rows.length} more: `, h("a", { href: "/debug/rejections" }, "/debug/rejections")) : null,
    );
  });
}

/** What the analyzers find, without what is listed as refused or as a warning already. */
function findings(analysed, rejections) {
  if (!analysed) return [];
  const known = new Set([...(rejections.configs ?? []), ...(rejections.warnings ?? [])].map(identity));
  const found = [...analysed.errors, ...analysed.warnings].filter((each) => !known.has(identity(each)));
  if (!found.length) return [];
  const rows = found.slice(0, SHOWN).map((each) =>
    h(
      "li",
      {},
      h("span", { class: "about" }, each.code ? badge(each.code, each.level === "error" ? "bad" : "warn") : null, " ", objectLink(each.object ?? "")),
      each.field ? h("span", { class: "detail" }, name(each.field)) : null,
      h("span", { class: "reason" }, name(each.reason ?? "", 1000)),
      place(each.where),
      each.mend ? h("span", { class: "quiet" }, name(each.mend, 500)) : null,
    ),
  );
  return h(
    "section",
    { class: "problems warn", "data-key": "analysis" },
    h("h3", {}, "Found by analysis ", badge(found.length, "warn")),
    h("ul", {}, rows),
    found.length > rows.length ? h("p", { class: "quiet" }, `and ${found.length - rows.length} more: mesh-pilot analyze`) : null,
  );
}

function identity(each) {
  return JSON.stringify([each.object ?? "", each.field ?? "", each.reason ?? ""]);
}

function happened({ kind, data }) {
  if (kind === "revision") return [link(to("history", data.revision), `revision ${data.revision}`), " was published"];
  if (kind === "proxies") {
    const { came, left } = data;
    const some = (which, word) => (which?.names.length ? [names(which.names, 3, (each) => link(to("proxies", each), each)), which.more + which.names.length > 3 && which.more ? ` (${which.more} more)` : "", ` ${word}; `] : []);
    return [some(came, "connected"), some(left, "left"), `${data.connected} are connected`];
  }
  if (kind === "nack") return [`${data.nacks} NACK: `, (data.latest ?? []).slice(-2).map((each) => [link(to("proxies", each.proxy), each.proxy), ": ", name(each.reason), " "])];
  return [data.ready ? `${data.refused} objects are refused` : "not ready"];
}

/** Revisions as rows of a table. */
export function revisionRows(revisions) {
  return revisions.map((each) => [
    h("a", { href: to("history", each.revision), "data-entry": "" }, each.revision),
    time(each.at),
    each.causes ? names(each.causes, 3, (cause) => objectLink(cause)) : "",
    each.proxies,
    bytes(each.bytes ?? 0),
    each.waiting ? badge(`${each.waiting} wait`, "warn") : duration(each.acked_seconds),
    each.nacks ? badge(each.nacks, "bad") : 0,
  ]);
}

export const REVISION_HEADS = ["revision", "published", "cause", "proxies", "bytes", "to the last ACK", "NACKs"];

/** The latest revisions: from the history, or if none is kept, from memory. */
export async function revisions(limit, signal) {
  const kept = await maybe(["history"], { limit }, signal);
  if (kept) return kept.items ?? kept;
  const response = await fetch("/debug/history", { signal });
  return response.ok ? (await response.json()).slice(0, limit) : [];
}

const analysis = { revision: null, next: 0, found: null };

/** The findings of the analyzers, which look at all objects: asked for once a revision at most, and in a large mesh,
 * where that takes longer, not as often. */
async function analysed(revision) {
  if (analysis.revision !== revision && Date.now() > analysis.next) {
    const from = Date.now();
    analysis.found = await maybe(["analysis"], {}).catch(() => analysis.found);
    analysis.next = Date.now() + Math.max(ANALYSIS_MS, 50 * (Date.now() - from));
    analysis.revision = revision;
  }
  return analysis.found;
}

export async function overview(parts, query, signal) {
  const [own, rejections, sources, latest] = await Promise.all([
    get(["status"], {}, signal),
    get(["rejections"], { limit: SHOWN }, signal),
    get(["sources"], {}, signal),
    revisions(6, signal),
  ]);
  const { counts } = own;
  const wrong = problems(rejections);
  const found = findings(await analysed(own.revision), rejections);
  const reasons = Object.entries({ ...own.not_ready, ...own.stale });
  const isWell = own.ready && !reasons.length && !wrong.length && !found.length;
  const kinds = Object.entries(counts.objects ?? {}).sort();
  return [
    h("h1", {}, "Overview"),
    h(
      "p",
      { class: "summary" },
      own.ready ? badge("ready", "good") : badge("not ready", "bad"),
      " ",
      isWell ? h("span", { class: "good" }, "Everything is in force as written.") : null,
    ),
    reasons.map(([who, why]) => h("p", { class: "bad", "data-key": `reason ${who}` }, name(`${who}: ${why}`, 1000))),
    wrong.length || found.length ? h("h2", {}, "Wrong now") : null,
    wrong,
    found,
    h(
      "ul",
      { class: "tiles", "aria-label": "Totals" },
      tile("#/proxies", counts.proxies, "proxies"),
      tile("#/services", counts.services, "services"),
      tile("#/services", counts.endpoints, "endpoints"),
      tile("#/objects", kinds.reduce((sum, [, count]) => sum + count, 0), "objects"),
      tile("#/history", own.revision, "revision"),
    ),
    h("h2", {}, "Lately"),
    recent.length
      ? h("ol", { class: "events", "aria-label": "Events since the page was opened" }, recent.map((each) => h("li", {}, time(each.at), " ", happened(each))))
      : h("p", { class: "quiet" }, "Nothing since the page was opened."),
    table("Latest revisions", REVISION_HEADS, revisionRows(latest), "There is no revision yet."),
    h("h2", {}, "Sources"),
    table(
      "Sources",
      ["name", "state", "objects", "refused", "restarts"],
      sources.map((each) => [
        name(each.name),
        [badge(each.state, each.state === "synced" ? "good" : "warn"), " ", name(each.last_error || each.waiting_for || "")],
        each.items,
        each.rejected,
        each.restarts,
      ]),
    ),
    h("h2", {}, "Objects"),
    h("p", {}, kinds.length ? kinds.map(([kind, count]) => [h("a", { href: `#/objects?kind=${encodeURIComponent(kind)}` }, kind), ` ${count}  `]) : "None."),
    h("h2", {}, "This control plane"),
    facts([
      ["version", own.version],
      ["up", duration(own.uptime_seconds)],
      ["workers", own.workers > 1 ? own.workers : ""],
      ["domain", own.mesh?.domain],
      ["root namespace", own.mesh?.root_namespace],
      ["other pages", h("a", { href: "/debug" }, "/debug")],
    ]),
  ];
}

function tile(href, count, text) {
  return h("li", {}, h("a", { href }, h("strong", {}, Number(count ?? 0).toLocaleString("en")), " ", text));
}
