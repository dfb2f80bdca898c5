// Now: what is wrong, by cause; what is in progress; what happened in the last hour.

import { get } from "./api.js";
import { ChangeRow } from "./changes.js";
import { Command, Mark, Name, Part, Place, Since, Some, State, Table, Time, Word, objectHref, sorted } from "./components.js";
import { html, to, toQuery } from "./lib.js";
import { Rollout } from "./rollout.js";
import { counted, number } from "./text.js";

const SHOWN = 12;
const LATEST = 5;

export const views = [
  { at: "", place: "now", title: "Now", load: (parts, query, signal) => get(["now"], {}, signal), show: Now },
  { at: "sources", place: "now", title: "Sources", load: async (parts, query, signal) => ({ rows: await get(["sources"], {}, signal) }), show: Sources },
];

function Now({ data, query }) {
  const { causes, more_causes: more, in_progress: rollout, last_hour: lastHour = [], totals } = data;
  const shown = query.all ? causes : causes.slice(0, SHOWN);
  const left = causes.length - shown.length + (more ?? 0);
  return html`
    <div class="sentence"><${Mark} severity=${data.severity} /><h1><${Name} text=${data.sentence} most=${600} /></h1></div>
    ${shown.length
      ? html`<${Part} title=${counted(causes.length + (more ?? 0), "cause")}>
          <ul class="causes">
            ${shown.map((cause, index) => html`<${Cause} key=${`${cause.kind} ${nameOf(cause)} ${cause.state} ${index}`} cause=${cause} />`)}
          </ul>
          ${left > 0 ? html`<p class="quiet">${number(left)} more${query.all ? ": mesh-pilot get" : html`: <a href="#/?all=1" data-replace>show them</a>`}</p>` : null}
        <//>`
      : null}
    <div class=${rollout ? "beside" : null}>
      ${rollout ? html`<${Part} title="In progress"><${Rollout} of=${rollout} /><//>` : null}
      <${Part} title="Last hour" aside=${html`<a href="#/changes">all changes</a>`}>
        ${lastHour.length
          ? html`<ul class="plainlist">${lastHour.slice(0, LATEST).map((each) => html`<${ChangeRow} key=${each.revision} of=${each} />`)}</ul>`
          : html`<p class="nothing">Nothing has changed.</p>`}
      <//>
    </div>
    <${Totals} totals=${totals} analysis=${data.analysis} />
    <p class="quiet">
      <a href="#/sources">Sources</a> of all this · mesh-pilot <${Name} text=${data.plane.version} />, started <${Time} at=${data.plane.started} />${data.plane.workers > 1 ? `, ${data.plane.workers} workers` : ""}
    </p>
  `;
}

// -- sources: where objects and services come from

function Sources({ data, query }) {
  const list = Array.isArray(data.rows) ? data.rows : data.rows.items;
  const rows = sorted(list, query);
  const parts = ["sources"];
  return html`
    <h1>Sources</h1>
    <section class="part">
      <${Table}
        label="Sources"
        rows=${rows}
        keyed=${(each) => each.name}
        parts=${parts}
        query=${query}
        columns=${[
          { head: "name", sort: "name", cell: (each) => html`<${Name} text=${each.name} />` },
          { head: "state", sort: "state", cell: (each) => html`<${State} of=${each} />` },
          { head: "why", class: "text", cell: (each) => html`<${Why} of=${each} />` },
          { head: "since", cell: (each) => html`<${Time} at=${each.since} />` },
          { head: "items", sort: "items", isDescending: true, isNumber: true, cell: (each) => number(each.items) },
          { head: "refused", sort: "rejected", isDescending: true, isNumber: true, cell: (each) => number(each.rejected) },
          { head: "restarts", sort: "restarts", isDescending: true, isNumber: true, cell: (each) => number(each.restarts) },
        ]}
      />
    </section>
  `;
}

function Why({ of }) {
  return html`<${Name} text=${of.why} most=${500} />
    ${of.held?.names?.length ? html`<br />held: <${Some} list=${of.held.names} total=${of.held.objects} />` : null}
    ${of.command ? html`<br /><${Command} text=${of.command} />` : null}`;
}

// -- causes

/** What several subjects of a kind are called, where a cause is about all of them. */
const GROUPS = { object: "objects", proxies: "proxies", service: "services" };

function isGroup({ kind, touches }) {
  return touches?.count > 1 && touches.what === GROUPS[kind];
}

/** Where the view of a cause's subject is; null if it has none. */
function hrefOf(cause) {
  const { kind, subject, state } = cause;
  if (isGroup(cause)) return toQuery([GROUPS[kind]], { state });
  if (kind === "object") return objectHref(`${subject.kind}/${subject.namespace}/${subject.name}`);
  if (kind === "proxies") return to("proxies", subject.name);
  if (kind === "service") return to("services", subject.namespace, subject.name);
  if (kind === "source") return "#/sources";
  if (kind === "certificate") return "#/proxies?sort=certificate_expires";
  return null;
}

function nameOf(cause) {
  const { kind, subject, touches } = cause;
  const own = kind === "object" ? `${subject.kind}/${subject.namespace}/${subject.name}` : subject.name;
  if (isGroup(cause)) return `${number(touches.count)} ${touches.what}, such as ${own}`;
  return kind === "source" || kind === "plane" ? [subject.kind.toLowerCase(), own].filter(Boolean).join(" ") : own;
}

function Cause({ cause }) {
  const href = hrefOf(cause);
  const { touches } = cause;
  return html`<li class="cause">
    <${Mark} severity=${cause.severity} />
    <p>
      <span class="who">${href ? html`<a href=${href} data-entry><${Name} text=${nameOf(cause)} /></a>` : html`<${Name} text=${nameOf(cause)} />`}</span>
      ${" "}<${Word} text=${cause.state} />${touches?.count && touches.what !== GROUPS[cause.kind] ? html`<${Touched} of=${touches} isFrom=${cause.state === "withheld"} />` : null}
    </p>
    <p class="why"><${Name} text=${cause.why} most=${400} /></p>
    ${cause.more || cause.where
      ? html`<p class="meta"><${Place} where=${cause.where} />${cause.where && cause.more ? " · " : ""}<${Name} text=${cause.more} most=${300} /></p>`
      : null}
    <div class="aside">
      ${cause.since ? html`<div><${Since} at=${cause.since} /></div>` : null}
      ${cause.command ? html`<${Command} text=${cause.command} />` : null}
    </div>
  </li>`;
}

/** How much a cause touches, and the first names of it. */
function Touched({ of, isFrom }) {
  const { count, what, names = [] } = of;
  const noun = count === 1 ? ONE[what] ?? what : what;
  return html`${isFrom ? " from" : ":"} ${number(count)}${of.of ? ` of ${number(of.of)}` : ""} ${noun}${names.length
      ? html`${" "}<span class="quiet">(<${Some} list=${names} most=${2} total=${count} />)</span>`
      : null}`;
}

const ONE = { proxies: "proxy", objects: "object", services: "service", endpoints: "endpoint" };

function Totals({ totals, analysis }) {
  const { next_certificate: certificate, root_expires: root } = totals;
  const notSynced = totals.proxies - totals.in_sync;
  return html`<ul class="tiles" aria-label="Totals">
    <${Tile} href="#/proxies" of=${number(totals.proxies)} text=${totals.proxies === 1 ? "proxy" : "proxies"} more=${totals.proxies ? (notSynced ? `${number(notSynced)} not in sync` : "all in sync") : "none connected"} isIll=${Boolean(notSynced)} />
    ${totals.gone ? html`<${Tile} href="#/proxies?state=gone" of=${number(totals.gone)} text="gone" more="with last seen" isIll />` : null}
    <${Tile} href=${totals.without_endpoints ? "#/services?state=down,empty" : "#/services"} of=${number(totals.services)} text=${totals.services === 1 ? "service" : "services"} more=${totals.without_endpoints ? `${number(totals.without_endpoints)} without endpoints` : totals.services ? "all with endpoints" : "none yet"} isIll=${Boolean(totals.without_endpoints)} />
    <${Tile} href="#/objects" of=${number(totals.objects)} text=${totals.objects === 1 ? "object" : "objects"} more=${found(analysis)} isIll=${Boolean(analysis?.errors)} />
    ${certificate
      ? html`<${Tile} href="#/proxies?sort=certificate_expires" of=${html`<${Time} at=${certificate.expires} />`} text="next certificate" more=${html`<${Name} text=${certificate.proxy} />${root ? html`; root <${Time} at=${root} />` : ""}`} />`
      : root
        ? html`<${Tile} href="#/proxies?sort=certificate_expires" of=${html`<${Time} at=${root} />`} text="the root expires" more="no proxy has a certificate" />`
        : null}
  </ul>`;
}

/** What the analyzers say of the objects. */
function found(analysis) {
  if (!analysis) return "";
  const { errors, warnings } = analysis;
  const parts = [errors ? counted(errors, "error") : "", warnings ? counted(warnings, "warning") : ""].filter(Boolean);
  return parts.join(", ") || "no warnings";
}

function Tile({ href, of, text, more, isIll = false }) {
  return html`<li class=${isIll ? "ill" : null}><a href=${href}><strong>${of}</strong> ${text}<br /><span>${more}</span></a></li>`;
}
