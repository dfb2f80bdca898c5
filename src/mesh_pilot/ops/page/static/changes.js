// Changes: the rollout, and the revisions by hour without an end; one revision with its diffs.

import { get, maybe } from "./api.js";
import { Badge, Chips, Clock, Diff, Facts, Filter, Link, Name, ObjectLink, Part, Some, Table, Time, Word, bytes } from "./components.js";
import { html, to, toQuery, useEffect, useState } from "./lib.js";
import { percent } from "./rates.js";
import { Rollout } from "./rollout.js";
import { counted, duration, number } from "./text.js";

const PIECE = 100;

export const views = [
  { at: "changes", place: "changes", title: "Changes", load: loadChanges, show: Changes },
  { at: "changes/:revision", place: "changes", title: "Revision", load: loadRevision, show: Revision },
];

async function loadChanges(parts, query, signal) {
  const [now, found] = await Promise.all([get(["now"], {}, signal), get(["history"], asked(query), signal)]);
  return { rollout: now.in_progress, plane: now.plane, found };
}

function asked(query) {
  return { limit: PIECE, object: query.object, proxy: query.proxy, since: query.since };
}

function Changes({ data, query }) {
  const { rollout, found } = data;
  const [older, setOlder] = useState({ items: [], next: undefined });
  const key = JSON.stringify([query.object, query.proxy, query.since]);
  useEffect(() => setOlder({ items: [], next: undefined }), [key]);
  const next = older.next === undefined ? found.next : older.next;
  const [isBusy, setBusy] = useState(false);
  async function more() {
    setBusy(true);
    try {
      const piece = await get(["history"], { ...asked(query), before: next });
      setOlder((own) => ({ items: [...own.items, ...piece.items], next: piece.next }));
    } finally {
      setBusy(false);
    }
  }
  const seen = new Set();
  const items = [...found.items, ...older.items].filter(({ revision }) => !seen.has(revision) && seen.add(revision));
  return html`
    <h1>Changes</h1>
    ${rollout ? html`<${Part} title="Rollout"><${Rollout} of=${rollout} isFull /><//>` : html`<p class="quiet">No rollout is in progress: each change reaches all proxies at once.</p>`}
    <div class="toolbar">
      <${Filter} parts=${["changes"]} query=${query} label="by object" name="object" />
      <${Filter} parts=${["changes"]} query=${query} label="by proxy that refused" name="proxy" />
      <${Chips} parts=${["changes"]} query=${query} names=${["object", "proxy", "since"]} />
    </div>
    <section class="part" aria-label="Revisions">
      ${items.length ? byHour(items).map(([hour, rows]) => html`<${Hour} key=${hour} hour=${hour} rows=${rows} />`) : html`<p class="nothing">No revision ${query.object || query.proxy ? "with this" : "yet"}.</p>`}
      ${next ? html`<p><button type="button" onClick=${more} disabled=${isBusy} data-page="next">${isBusy ? "reading" : `older than revision ${number(next)}`}</button></p>` : null}
      ${found.kept === "memory" ? html`<p class="quiet">These are the revisions since the control plane started: it keeps no history (see --state-dir).</p>` : null}
    </section>
  `;
}

function byHour(items) {
  const found = new Map();
  for (const each of items) {
    const at = each.at ? new Date(each.at) : null;
    const hour = at ? new Date(at.getFullYear(), at.getMonth(), at.getDate(), at.getHours()).toISOString() : "";
    if (!found.has(hour)) found.set(hour, []);
    found.get(hour).push(each);
  }
  return [...found];
}

function Hour({ hour, rows }) {
  const at = new Date(hour);
  const day = at.toDateString() === new Date().toDateString() ? "today" : at.toLocaleDateString("en", { weekday: "short", day: "numeric", month: "short" });
  const title = hour ? `${day}, ${String(at.getHours()).padStart(2, "0")}:00` : "before";
  return html`<h2 class="hour">${title} <span class="quiet">· ${counted(rows.length, "change")}</span></h2>
    <ul class="plainlist">${rows.map((each) => html`<${ChangeRow} key=${each.revision} of=${each} exact />`)}</ul>`;
}

/** A revision as a line: when, what changed, how it went. */
export function ChangeRow({ of, exact = false }) {
  const changed = of.changed?.length ? of.changed : [];
  return html`<li class="change">
    <span class="quiet">${exact ? html`<${Clock} at=${of.at} />` : html`<${Time} at=${of.at} />`}</span>
    <a href=${to("changes", of.revision)} data-entry aria-label=${`revision ${of.revision}`}>${of.revision}</a>
    <span class="what">
      ${changed.length
        ? html`<${Some} list=${changed} most=${exact ? 3 : 1} total=${of.objects} shown=${(each) => html`<${ObjectLink} text=${each} />`} />`
        : html`<span class="quiet">${of.causes?.length ? html`<${Some} list=${of.causes} most=${2} />` : "services and endpoints"}</span>`}
      ${of.trials ? html`${" "}<${Badge} text=${counted(of.trials, "trial")} />` : null}
    </span>
    <span class="outcome"><${Outcome} of=${of} /></span>
  </li>`;
}

function Outcome({ of }) {
  const nacks = Array.isArray(of.nacks) ? of.nacks.length : (of.nacks ?? 0);
  if (nacks) {
    return html`<${Badge} text=${`refused by ${of.refused_by?.length ? of.refused_by[0] : number(nacks)}${of.refused_by?.length > 1 ? ` and ${number(Math.max(nacks, of.refused_by.length) - 1)} more` : ""}`} severity="error" sign />`;
  }
  if (of.traffic?.verdict === "worse") return html`<${Badge} text="worse after" severity="error" sign /> <span class="worst"><${Name} text=${worst(of.traffic)} /></span>`;
  if (of.waiting) return html`<${Badge} text=${`${counted(of.waiting, "proxy")} ${of.waiting === 1 ? "has" : "have"} not answered`} severity="warning" sign />`;
  if (!of.proxies) return "no proxy";
  return `${counted(of.proxies, "proxy")}${of.acked_seconds !== null && of.acked_seconds !== undefined ? `, ${duration(of.acked_seconds)}` : ""}`;
}

/** The edge that got worse most, in words. */
function worst({ worse: [first] }) {
  return first ? `${first.caller}.${first.namespace} to ${first.called || "all that it calls"}` : "";
}

/** What became of the calls that a revision touched. */
function AfterIt({ of }) {
  const failed = (tries, failures) => `${number(failures)} of ${number(tries)} failed${tries ? ` (${failures ? percent(failures / tries) : "0 %"})` : ""}`;
  return html`<${Part} title=${html`Traffic after it: <${Word} text=${of.verdict} word=${`${of.verdict} after`} />`}>
    <p>
      ${of.worse_edges ? `Worse on ${number(of.worse_edges)} of ${counted(of.edges, "edge")}. ` : ""}${failed(of.tries_before, of.failures_before)} in
      ${" "}${counted(of.minutes_before, "minute")} before, ${failed(of.tries_after, of.failures_after)} in ${counted(of.minutes_after, "minute")} after.
      ${of.cut_by === null ? "" : html` Until <a href=${to("changes", of.cut_by)}>revision ${of.cut_by}</a>, which touches some of the same calls.`}
      ${of.is_complete ? "" : " Some of the counts were lost."}
    </p>
    ${of.worse.length
      ? html`<${Table}
          label="Calls that got worse"
          rows=${of.worse}
          keyed=${(each) => `${each.caller} ${each.namespace} ${each.called}`}
          columns=${[
            { head: "caller", cell: (each) => html`<${Link} href=${toQuery(["traffic"], { namespace: each.namespace, q: each.caller })} text=${`${each.caller}.${each.namespace}`} entry />` },
            { head: "calls", cell: (each) => html`<${Name} text=${each.called || "all that it calls of these"} />` },
            { head: "before", cell: (each) => failed(each.tries_before, each.failures_before) },
            { head: "after", cell: (each) => failed(each.tries_after, each.failures_after) },
            { head: "of", cell: (each) => each.unit },
          ]}
        />`
      : null}
  <//>`;
}

async function loadRevision(parts, query, signal) {
  const number = Number(parts[1]) || 0;
  const [own, differences] = await Promise.all([
    maybe(["history", String(number)], {}, signal),
    number > 0 ? maybe(["history", String(number - 1), "diff"], { to: number }, signal) : null,
  ]);
  const listed = own ?? (await get(["history"], { limit: PIECE, before: number + 1 }, signal)).items.find((each) => each.revision === number);
  return { own: listed ?? null, differences };
}

function Revision({ data, parts }) {
  const { own, differences } = data;
  const number_ = Number(parts[1]) || 0;
  const title = html`<h1><${Word} text="Revision" word="revision" /> ${number_}</h1>`;
  const nav = html`<p class="pager"><span>${number_ > 1 ? html`<a href=${to("changes", number_ - 1)} data-page="previous">revision ${number_ - 1}</a>` : null}</span><a href=${to("changes", number_ + 1)} data-page="next">revision ${number_ + 1}</a></p>`;
  if (!own) return html`${title}<p role="alert">It is not known: there was none, or it is no longer kept.</p>${nav}`;
  const nacks = Array.isArray(own.nacks) ? own.nacks : [];
  const count = own.nack_count ?? (Array.isArray(own.nacks) ? own.nacks.length : own.nacks);
  return html`
    ${title}
    <section class="part">
      <${Facts}
        pairs=${[
          ["published", own.at ? html`<${Time} at=${own.at} />` : null],
          ["causes", own.causes?.length ? html`<${Some} list=${own.causes} most=${6} />` : null],
          ["sent to", counted(own.proxies ?? 0, "proxy")],
          ["bytes", own.bytes ? bytes(own.bytes) : null],
          ["last answer after", own.acked_seconds !== null && own.acked_seconds !== undefined ? duration(own.acked_seconds) : null],
          ["waiting", own.waiting ? html`<${Badge} text=${`${own.waiting} have not answered`} severity="warning" sign />` : null],
          ["NACKs", count ? html`<${Badge} text=${number(count)} severity="error" sign />` : null, "NACK"],
          ["trials", own.trials ? number(own.trials) : null, "trial"],
        ]}
      />
    </section>
    ${nacks.length
      ? html`<${Part} title="Refused by proxies">
          <ul class="words">
            ${nacks.slice(0, 50).map((each) => html`<li><${Link} href=${to("proxies", each.proxy)} text=${each.proxy} /> ${each.type}: <${Name} text=${each.reason} most=${1000} /></li>`)}
          </ul>
        <//>`
      : null}
    ${own.traffic ? html`<${AfterIt} of=${own.traffic} />` : null}
    <${Part} title="What changed"><${Differences} own=${own} differences=${differences} /><//>
    ${nav}
  `;
}

function Differences({ own, differences }) {
  const found = differences?.items ?? [];
  if (found.length) {
    return html`${found.slice(0, 100).map(
        (each) => html`<div key=${each.name}>
          <h3><${ObjectLink} text=${each.name} /> ${each.action ? html`<${Badge} text=${each.action} />` : null}</h3>
          ${each.diff?.length ? html`<${Diff} text=${each.diff} />` : null}
        </div>`,
      )}
      ${found.length > 100 ? html`<p class="quiet">and ${number(differences.total - 100)} more: mesh-pilot history diff</p>` : null}`;
  }
  if (!own.changes) {
    return html`<p class="nothing">${own.changed?.length ? html`<${Some} list=${own.changed} shown=${(each) => html`<${ObjectLink} text=${each} />`} />; ` : ""}this control plane keeps no history of objects (see --state-dir).</p>`;
  }
  return html`<${Table}
    label="Changed objects"
    rows=${own.changes.slice(0, 500)}
    keyed=${(each) => `${each.source} ${each.object}`}
    nothing="No object: endpoints, or what the control plane makes itself."
    columns=${[
      { head: "object", cell: (each) => html`<${ObjectLink} text=${each.object} entry />` },
      { head: "source", cell: (each) => html`<${Name} text=${each.source} />` },
      { head: "action", cell: (each) => each.action },
      { head: "cause", cell: (each) => html`<${Name} text=${each.cause} />` },
    ]}
  />`;
}
