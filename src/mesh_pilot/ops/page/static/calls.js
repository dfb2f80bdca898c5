// Calls: who calls whom and how well, as proxies count it. At first by namespace; then one namespace, the calls between
// two, or what a filter finds. A picture, and the same as a table, which is what a phone shows.

import { get, sparingly } from "./api.js";
import { KINDS, endHref, endName } from "./callends.js";
import { CallsPicture } from "./callspicture.js";
import { Badge, Chips, Filter, Link, Name, PAGE, Pager, Part, States, Table } from "./components.js";
import { html, to, toQuery } from "./lib.js";
import { Before, Counted, Particulars, Rate, Success } from "./rates.js";
import { counted, number } from "./text.js";

const LISTED = ["traffic"];
const REPORTERS = ["traffic", "proxies"];

/** Calls of an answer: what got worse, fails, or is used most comes first. */
const MOST = 300;

export const views = [
  { at: "traffic", place: "traffic", title: "Calls", load: loadCalls, show: Calls, quietMs: 9000 },
  { at: "traffic/proxies", place: "traffic", title: "Who reports", load: loadReporters, show: Reporters },
];

async function loadCalls(parts, query, signal) {
  const { namespace, q, state, sort, only } = query;
  if (!namespace && !q && !only) {
    const whole = await sparingly(LISTED, { by: "namespace", state, sort, limit: MOST }, signal);
    const known = new Set(whole.items.flatMap(({ caller, called }) => [caller.namespace, called.namespace]).filter(Boolean));
    // Of a mesh with one namespace its sum tells nothing.
    if (whole.advice || known.size > 1) return { ...whole, isWhole: true };
  }
  return sparingly(LISTED, { namespace, q, state, sort, only, limit: MOST }, signal);
}

/** True of calls between the namespace that is looked at and the one that it is looked at with. */
function isWith(row, query) {
  return !query.with || [row.caller.namespace, row.called.namespace].includes(query.with);
}

function Calls({ data, query }) {
  const rows = data.items.filter((each) => isWith(each, query));
  const isFiltered = ["q", "namespace", "state", "only", "with"].some((name) => query[name]);
  const expanded = data.isWhole ? [] : query.namespace ? [query.namespace, query.with].filter(Boolean) : null;
  const of = query.namespace ? html`Calls of <${Name} text=${query.namespace} />${query.with ? html` and <${Name} text=${query.with} />` : null}` : "Who calls whom";
  if (data.advice) return html`<h1>${of}</h1><section class="part" aria-label="Advice"><${Counted} window=${data} /></section>`;
  return html`
    <h1>${of}</h1>
    <div class="toolbar">
      <${Filter} parts=${LISTED} query=${query} label="callers and services" />
      <${States} counts=${data.counts} parts=${LISTED} query=${query} />
      <${Only} query=${query} />
      <${Chips} parts=${LISTED} query=${query} names=${["namespace", "with"]} />
      <p class="pager" role="status">
        ${rows.length < data.total ? `${number(rows.length)} of ` : ""}${counted(data.total, "edge")}, the latest ${number(Math.round(data.seconds))} seconds
      </p>
    </div>
    ${rows.length
      ? html`<${CallsPicture} rows=${rows} expanded=${expanded} namespace=${query.namespace} />
          <${Part} title="As a table" id="calls-table"><${CallsTable} rows=${rows} query=${query} isCompared=${data.before_seconds > 0} /><//>`
      : html`<section class="part"><p class="nothing">${isFiltered ? "The filter lets no call through." : "No call was counted in this time."}</p></section>`}
    <${Counted} window=${data} />
  `;
}

const ONLY = { unrouted: "no VirtualService", denied: "denied by a policy" };

/** Filters of calls by what the configuration says of them. */
function Only({ query }) {
  return html`<nav class="chips" aria-label="Filter by configuration">
    ${Object.entries(ONLY).map(
      ([only, text]) => html`<a class="chip" key=${only} href=${toQuery(LISTED, { ...query, only: query.only === only ? "" : only })} aria-current=${query.only === only ? "true" : null} data-replace>${text}</a>`,
    )}
  </nav>`;
}

// -- the table

function End({ of, entry = false }) {
  const href = endHref(of);
  const more = of.kind === "namespace" ? "" : (KINDS[of.kind] ?? of.namespace);
  return html`<span>
    ${href ? html`<${Link} href=${href} text=${endName(of)} entry=${entry} />` : html`<${Name} text=${endName(of)} />`}
    ${of.port || more ? html` <span class="quiet">${of.port ? `:${of.port}` : ""}${more ? html` <${Name} text=${more} />` : null}</span>` : null}
    ${of.subset ? html` <${Badge} text=${of.subset} />` : null}
  </span>`;
}

/** Calls as rows. `without`: the end that all have in common, `caller` or `called`. */
export function CallsTable({ rows, query = {}, parts = LISTED, isCompared = true, without = "" }) {
  const has = (member) => rows.some((each) => each[member]);
  return html`<${Table}
    label="Calls"
    rows=${rows}
    keyed=${({ caller, called }) => JSON.stringify([caller, called])}
    parts=${parts}
    query=${query}
    columns=${[
      ...(without === "caller" ? [] : [{ head: "caller", cell: (each) => html`<${End} of=${each.caller} entry=${without === "called"} />` }]),
      ...(without === "called" ? [] : [{ head: "calls", cell: (each) => html`<${End} of=${each.called} entry />` }]),
      { head: "a second", sort: "per_second", isNumber: true, isDescending: true, cell: (each) => html`<${Rate} of=${each} />` },
      { head: "success", word: "success", sort: "rate", isNumber: true, isDescending: true, cell: (each) => html`<${Success} of=${each} />` },
      ...(isCompared ? [{ head: "ten minutes ago", isNumber: true, cell: (each) => html`<${Before} of=${each} />` }] : []),
      ...(has("in_flight") ? [{ head: "in flight", word: "in flight", sort: "in_flight", isNumber: true, isDescending: true, cell: (each) => number(each.in_flight) }] : []),
      { head: "notes", class: "marks", cell: (each) => html`<${Particulars} of=${each} />` },
    ]}
  />`;
}

// -- who reports

function loadReporters(parts, query, signal) {
  const { q, namespace, state, sort, offset } = query;
  return get(REPORTERS, { q, namespace, state, sort: sort || "-reports", offset, limit: PAGE }, signal);
}

function Reporters({ data, query }) {
  return html`
    <h1>Who reports traffic</h1>
    <div class="toolbar">
      <${Filter} parts=${REPORTERS} query=${query} label="proxies" />
      <${States} counts=${data.counts} parts=${REPORTERS} query=${query} />
      <${Chips} parts=${REPORTERS} query=${query} names=${["namespace"]} />
      <${Pager} found=${data} parts=${REPORTERS} query=${query} noun=${data.total === 1 ? "proxy" : "proxies"} />
    </div>
    <section class="part" aria-label="List">
      <${Table}
        label="Proxies"
        rows=${data.items}
        keyed=${(each) => each.proxy_id}
        parts=${REPORTERS}
        query=${query}
        nothing=${query.q || query.namespace || query.state ? "The filter lets no proxy through." : "No proxy has connected, or traffic is off."}
        columns=${[
          { head: "proxy", sort: "proxy", cell: (each) => html`<${Link} href=${to("proxies", each.proxy)} text=${each.proxy} entry />` },
          { head: "reports", sort: "reports", cell: (each) => html`<${Badge} text=${each.reports} severity=${each.reports === "nothing" ? "warning" : each.reports === "requests" ? "ok" : ""} />` },
          { head: "connected", cell: (each) => (each.is_connected ? "yes" : "no") },
          { head: "why", class: "text", cell: (each) => html`<${Name} text=${each.why} />` },
        ]}
      />
      <${Pager} found=${data} parts=${REPORTERS} query=${query} at="bottom" />
    </section>
  `;
}
