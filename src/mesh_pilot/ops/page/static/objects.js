// Objects: those that are not in force first; one with its verdict, findings, what it is about and makes, its YAML.

import { get, maybe, rarely } from "./api.js";
import { Badge, Chips, Described, Diff, Facts, Filter, Folded, Link, Name, ObjectLink, PAGE, Pager, Part, Place, Some, State, States, Table, Verdict } from "./components.js";
import { html, to, toQuery } from "./lib.js";
import { Changes } from "./services.js";
import { counted, number, yaml } from "./text.js";

const LISTED = ["objects"];

export const views = [
  { at: "objects", place: "ask", title: "Objects", load: loadObjects, show: Objects },
  { at: "objects/:kind/:namespace/:name", place: "ask", title: "Object", load: loadObject, show: OneObject },
];

// -- the list

function loadObjects(parts, query, signal) {
  const { q, kind, namespace, state, sort, offset } = query;
  return get(LISTED, { q, kind, namespace, state, sort: sort || "severity", offset, limit: PAGE }, signal);
}

function Objects({ data, query }) {
  const isFiltered = ["q", "kind", "namespace", "state"].some((name) => query[name]);
  if (!data.total && !isFiltered) return html`<h1>Objects</h1><${NoObjects} />`;
  const narrowed = (name, value) => html`<${Link} href=${toQuery(LISTED, { ...query, [name]: value, offset: "" })} text=${value} data-replace />`;
  return html`
    <h1>Objects</h1>
    <div class="toolbar">
      <${Filter} parts=${LISTED} query=${query} label="objects" />
      <${States} counts=${data.counts} parts=${LISTED} query=${query} />
      <${Chips} parts=${LISTED} query=${query} names=${["kind", "namespace"]} />
      <${Pager} found=${data} parts=${LISTED} query=${query} noun=${data.total === 1 ? "object" : "objects"} />
    </div>
    <section class="part" aria-label="List">
      <${Table}
        label="Objects"
        rows=${data.items}
        keyed=${(each) => `${each.kind}/${each.namespace}/${each.name}`}
        parts=${LISTED}
        query=${query}
        nothing="The filter lets no object through."
        columns=${[
          { head: "name", sort: "name", cell: (each) => html`<${Link} href=${to("objects", each.kind, each.namespace, each.name)} text=${each.name} entry />` },
          { head: "state", sort: "severity", cell: (each) => (each.state ? html`<${State} of=${each} />` : null) },
          ...(data.items.some((each) => each.why) ? [{ head: "why", class: "text", cell: (each) => html`<${Name} text=${each.why} />` }] : []),
          { head: "kind", sort: "kind", cell: (each) => narrowed("kind", each.kind) },
          { head: "namespace", sort: "namespace", cell: (each) => narrowed("namespace", each.namespace) },
          { head: "warnings", sort: "warnings", isNumber: true, isDescending: true, cell: (each) => (each.warnings ? number(each.warnings) : "") },
          { head: "read from", sort: "origin", cell: (each) => html`<${Place} where=${each.origin} />` },
        ]}
      />
      <${Pager} found=${data} parts=${LISTED} query=${query} at="bottom" />
    </section>
  `;
}

function NoObjects() {
  return html`<${Part} title="No object is known yet">
    <p>Objects are Istio's: VirtualServices, DestinationRules, Gateways and others. Put a file of YAML into the folder that <code>--config-dir</code> names. It is read at once; what is wrong with it is said on <a href="#/">Now</a>.</p>
  <//>`;
}

// -- one object

async function loadObject(parts, query, signal) {
  const [, kind, namespace, own] = parts;
  const [found, about, described, analysis] = await Promise.all([
    get(["objects", kind, namespace, own], {}, signal),
    maybe(["objects", kind, namespace, own, "services"], {}, signal),
    rarely(["describe", "object", kind, namespace, own]),
    rarely(["analysis"]),
  ]);
  return { found, about, described, findings: findingsOf(analysis, `${kind}/${namespace}/${own}`) };
}

/** What analyzers find about one object. */
function findingsOf(analysis, object) {
  const { errors = [], warnings = [], infos = [] } = analysis ?? {};
  return [...errors, ...warnings, ...infos].filter((each) => each.object === object);
}

const LEVELS = { error: "error", warning: "warning", info: "" };

function OneObject({ data, parts }) {
  const { found, about, described, findings } = data;
  const [, kind, namespace, own] = parts;
  const object = `${kind}/${namespace}/${own}`;
  const config = found.object;
  const verdict = verdictOf(found, findings);
  return html`
    <h1><${Name} text=${own} /> <span class="quiet"><${Name} text=${kind} /></span></h1>
    <${Verdict} of=${verdict} fine="Each proxy that it applies to has its newest version." command=${found.command ?? ""}>
      ${verdict.fix ? html`<p class="quiet"><${Name} text=${verdict.fix} most=${1000} /></p>` : null}
      ${verdict.proxies?.length
        ? html`<p><span class="quiet">${counted(verdict.proxies_in_all, "proxy")}${verdict.applies_to ? ` of ${number(verdict.applies_to)}` : ""}: </span><${Some}
            list=${verdict.proxies} total=${verdict.proxies_in_all} shown=${(each) => html`<${Link} href=${to("proxies", each)} text=${each} />`} /></p>`
        : null}
    <//>
    <section class="part" aria-label="Facts">
      <${Facts}
        pairs=${[
          ["namespace", html`<${Link} href=${toQuery(LISTED, { namespace })} text=${namespace} />`],
          ["read from", config ? html`<${Place} where=${config.origin} />` : null],
          ["about", about?.length ? html`<${Some} list=${about} most=${4} shown=${(each) => html`<${Link} href=${to("services", each.namespace, each.host)} text=${each.host} />`} />` : null],
          ["gateway", kind === "Gateway" ? html`<${Link} href=${to("gateways", namespace, own)} text="what it exposes" />` : null],
          ["becomes", found.becomes?.length ? html`<${Some} list=${found.becomes} shown=${(each) => html`<${ObjectLink} text=${each} />`} />` : null],
        ]}
      />
    </section>
    ${found.problems.length || findings.length
      ? html`<${Part} title="What is wrong with it">
          <ul class="plainlist findings">
            ${found.problems.map((each) => html`<${Finding} key=${`${each.field} ${each.reason}`} level=${each.severity} field=${each.field} text=${each.reason} where=${each.where} />`)}
            ${findings.map((each) => html`<${Finding} key=${`${each.code} ${each.field} ${each.reason}`} level=${each.level.toLowerCase()} field=${each.field} text=${each.reason} where=${each.where} code=${each.code} fix=${each.fix} />`)}
          </ul>
        <//>`
      : null}
    ${found.truth?.served && config ? html`<${Part} title="In force at these proxies (−), and in the source (+)"><${Diff} text=${difference(found.truth.served, config)} /><//>` : null}
    <div class="beside">
      <div>
        ${config ? html`<${Part} title=${["in force", "faulty"].includes(verdict.state) ? "As it is in force" : "As it is in its source"}><pre class="yaml" tabindex="0">${yaml(shown(config)).trimStart()}</pre><//>` : null}
      </div>
      <div>
        ${described ? html`<${Part} title="In words"><${Described} described=${described} known=${["Object", "Produces", "State"]} self=${object} /><//>` : null}
        <${Changes} objects=${[object]} />
        <${Produced} list=${found.produces} />
      </div>
    </div>
  `;
}

/** The verdict on an object. An error that an analyzer has found since the plane looked last counts already. */
function verdictOf(found, findings) {
  const { truth, state, severity, why, since } = found;
  const error = severity === "ok" ? findings.find((each) => each.level.toLowerCase() === "error") : null;
  return error ? { ...truth, state: "faulty", severity: "error", why: error.reason } : { ...truth, state, severity, why, since };
}

function Finding({ level, field, text, where, code = "", fix = "" }) {
  return html`<li>
    <${Badge} text=${level} severity=${LEVELS[level]} sign=${level !== "info"} />${" "}<${Name} text=${text} most=${2000} />
    <span class="quiet">${field ? html`${" "}<code><${Name} text=${field} /></code>` : null} ${code} <${Place} where=${where} /></span>
    ${fix ? html`<div class="quiet"><${Name} text=${fix} most=${1000} /></div>` : null}
  </li>`;
}

function Produced({ list }) {
  return html`<${Folded} title=${list.length ? `What it makes: ${counted(list.length, "resource")}` : "What it makes: nothing that a connected proxy has"} open=${list.length > 0 && list.length <= 10}>
    ${() => html`<${Table}
      label="Resources made from it"
      rows=${list}
      keyed=${(each) => `${each.type} ${each.name}`}
      nothing="No connected proxy has anything made of it."
      columns=${[
        { head: "resource", cell: (each) => html`<${Link} href=${to("proxies", each.first, each.type, each.name)} text=${each.name} />` },
        { head: "type", cell: (each) => each.type },
        { head: "proxies", isNumber: true, cell: (each) => number(each.proxies) },
      ]}
    />`}
  <//>`;
}

/** The lines in which two versions of an object differ, with three around them. */
function difference(old, fresh) {
  const [before, after] = [old, fresh].map((each) => yaml(shown(each)).trimStart().split("\n"));
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < most - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const lines = (list, sign) => list.slice(start, list.length - end).map((each) => `${sign}${each}`);
  const around = (from, to) => after.slice(Math.max(0, from), to).map((each) => ` ${each}`);
  return [...around(start - 3, start), ...lines(before, "-"), ...lines(after, "+"), ...around(after.length - end, after.length - end + 3)];
}

function shown({ origin, ...config }) {
  return config;
}
