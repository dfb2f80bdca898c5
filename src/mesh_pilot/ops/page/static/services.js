// Services: those without a healthy endpoint first; one with its verdict, routes, gateways, clients, endpoints and changes.

import { get, maybe, rarely } from "./api.js";
import {
  Badge, Chips, Described, Facts, Filter, Folded, Link, Name, ObjectLink, PAGE, Pager, Part, Some, State, States, Table, Time, Verdict, useAnswer,
} from "./components.js";
import { html, to, toQuery } from "./lib.js";
import { Chart, Success, perSecond } from "./rates.js";
import { Destination, Trees } from "./routes.js";
import { CallsOf, callsOf } from "./servicecalls.js";
import { counted, number, plain } from "./text.js";

const LISTED = ["services"];

/** Of the hosts of one piece of the list, which several namespaces may have. */
const MOST_CALLED = 1000;

export const views = [
  { at: "services", place: "traffic", title: "Services", load: loadServices, show: Services },
  { at: "services/:namespace/:host", place: "traffic", title: "Service", load: loadService, show: Service, quietMs: 9000 },
];

/** What a mode of mTLS means for clients. */
const MTLS = { STRICT: "required", PERMISSIVE: "accepted", DISABLE: "off", MIXED: "differs by port" };

// -- the list

async function loadServices(parts, query, signal) {
  const { q, namespace, registry, state, sort, offset } = query;
  const found = await get(LISTED, { q, namespace, registry, state, sort: sort || "severity", offset, limit: PAGE }, signal);
  const hosts = [...new Set(found.items.map(({ host }) => host))].sort();
  const calls = hosts.length ? await rarely(["traffic", "services"], { service: hosts, namespace, limit: MOST_CALLED }) : null;
  return { ...found, calls: new Map((calls?.items ?? []).map((each) => [`${each.service.namespace}/${each.service.name}`, each])) };
}

function Services({ data, query }) {
  const isFiltered = ["q", "namespace", "registry", "state"].some((name) => query[name]);
  if (!data.total && !isFiltered) return html`<h1>Services</h1><${NoServices} />`;
  const narrowed = (name, value) => html`<${Link} href=${toQuery(LISTED, { ...query, [name]: value, offset: "" })} text=${value} data-replace />`;
  const isIll = data.items.some((each) => each.why);
  const callsTo = (each) => data.calls.get(`${each.namespace}/${each.host}`);
  const hasCalls = data.items.some(callsTo);
  return html`
    <h1>Services</h1>
    <div class="toolbar">
      <${Filter} parts=${LISTED} query=${query} label="services" />
      <${States} counts=${data.counts} parts=${LISTED} query=${query} />
      <${Chips} parts=${LISTED} query=${query} names=${["namespace", "registry"]} />
      <${Pager} found=${data} parts=${LISTED} query=${query} noun=${data.total === 1 ? "service" : "services"} />
    </div>
    <section class="part" aria-label="List">
      <${Table}
        label="Services"
        rows=${data.items}
        keyed=${(each) => `${each.namespace}/${each.host}`}
        parts=${LISTED}
        query=${query}
        nothing="The filter lets no service through."
        columns=${[
          { head: "name", sort: "host", cell: (each) => html`<${Link} href=${to("services", each.namespace, each.host)} text=${each.host} entry />` },
          { head: "state", sort: "severity", cell: (each) => (each.state ? html`<${State} of=${each} />` : null) },
          ...(isIll ? [{ head: "why", class: "text", cell: (each) => html`<${Name} text=${each.why} />` }] : []),
          { head: "healthy", sort: "healthy", isNumber: true, cell: (each) => html`<span>${number(each.healthy)} <span class="quiet">of ${number(each.endpoints)}</span></span>` },
          ...(hasCalls
            ? [
                { head: "calls a second", isNumber: true, cell: (each) => html`<${Calls} of=${callsTo(each)} />` },
                { head: "success", word: "success", isNumber: true, cell: (each) => (callsTo(each) ? html`<${Success} of=${callsTo(each)} />` : null) },
              ]
            : []),
          { head: "clients", word: "clients", sort: "clients", isNumber: true, class: "minor", isDescending: true, cell: (each) => number(each.clients) },
          { head: "routes", word: "routes", sort: "routes", isNumber: true, class: "minor", isDescending: true, cell: (each) => number(each.routes) },
          { head: "mTLS", word: "mTLS", sort: "mtls", cell: (each) => MTLS[each.mtls] ?? "" },
          ...(hasCalls ? [] : [{ head: "ports", class: "minor", cell: (each) => html`<${Some} list=${each.ports} most=${3} shown=${(port) => html`<${Name} text=${`${port.number} ${port.protocol}`} />`} />` }]),
          { head: "namespace", sort: "namespace", cell: (each) => narrowed("namespace", each.namespace) },
          { head: "source", sort: "registry", class: "minor", cell: (each) => narrowed("registry", each.registry) },
        ]}
      />
      <${Pager} found=${data} parts=${LISTED} query=${query} at="bottom" />
    </section>
  `;
}

/** Ten minutes of calls, and how many a second there are now. */
function Calls({ of }) {
  if (!of) return null;
  return html`<span class="calls-of"><${Chart} of=${of.series} unit=${of.unit} /> <a href=${toQuery(["traffic"], { namespace: of.service.namespace, q: of.service.name })}>${perSecond(of.per_second)}</a></span>`;
}

function NoServices() {
  return html`<${Part} title="No service is known yet">
    <p>Services come from a registry, or from ServiceEntries in files. Start the control plane with one of these flags, or put a file into its folder:</p>
    <ul class="words">
      <li><code>--consul-addr ADDRESS</code>: the services of Consul</li>
      <li><code>--config-dir FOLDER</code>: files of YAML; a change is read at once</li>
    </ul>
  <//>`;
}

// -- one service

async function loadService(parts, query, signal) {
  const [, namespace, host] = parts;
  const [own, tree, described] = await Promise.all([
    get(["services", namespace, host], { limit: PAGE, offset: query.offset }, signal),
    maybe(["services", namespace, host, "routes"], {}, signal),
    rarely(["describe", "service", host], { namespace }),
  ]);
  return { own, tree, described, calls: await callsOf(own) };
}

/** The section about objects of which proxies do not have the newest version. */
const ELSEWHERE = "Not in force";

/** Sections of the description that the view shows in its own way. */
const KNOWN = ["Service", "Ports", "Endpoints", "Routing", "Traffic policy", ELSEWHERE];

function Service({ data, parts, query }) {
  const { own, tree, described, calls } = data;
  const healthy = own.health?.HEALTHY ?? 0;
  const port = own.ports?.[0]?.number;
  const objects = objectsOf(own, tree);
  return html`
    <h1><${Name} text=${own.host} /></h1>
    ${own.state ? html`<${Verdict} of=${own} fine=${`${healthy} of ${counted(own.endpoints_total, "endpoint")} healthy.`} command=${own.command ?? ""} />` : null}
    <section class="part" aria-label="Facts">
      <${Facts}
        pairs=${[
          ["namespace", html`<${Link} href=${toQuery(LISTED, { namespace: own.namespace })} text=${own.namespace} />`],
          ["source", own.registry],
          ["declared by", own.config ? html`<${ObjectLink} text=${own.config} />` : null],
          ["ports", html`<${Some} list=${own.ports} most=${8} shown=${(each) => html`<${Name} text=${`${each.number} ${each.protocol}`} />`} />`],
          ["addresses", own.addresses?.length ? html`<${Some} list=${own.addresses} most=${6} />` : null],
          ["resolution", own.resolution],
          ["outside the mesh", own.external ? "yes" : null],
          ["mTLS", MTLS[own.mtls] ?? "", "mTLS"],
          ["clients", own.clients ? html`<${Clients} own=${own} />` : "no connected proxy", "clients"],
          ["exported to", own.exportTo?.length ? own.exportTo.map((each) => (each === "*" ? "all namespaces" : each === "." ? own.namespace : each)).join(", ") : null],
          ["ask", html`<a href=${toQuery(["ask"], { proxy: own.called_by?.[0] ?? "", to: `${own.host}${port ? `:${port}` : ""}/` })}>what a request to it would meet</a>`],
        ]}
      />
    </section>
    ${described?.sections.some((each) => each.title.startsWith(ELSEWHERE)) ? html`<${Part} title="Not in force as written"><${Described} described=${described} only=${ELSEWHERE} /><//>` : null}
    ${calls ? html`<${CallsOf} calls=${calls} namespace=${own.namespace} />` : null}
    ${own.endpoints_total ? html`<${Endpoints} own=${own} parts=${parts} query=${query} />` : null}
    <div class="beside">
      <div>
        <${Part} title="Routes">${tree ? html`<${Routes} tree=${tree} />` : null}<//>
        ${tree?.gateways?.length ? html`<${Gateways} list=${tree.gateways} />` : null}
      </div>
      <div>
        ${described ? html`<${Part} title="Who may reach it"><${Described} described=${described} known=${KNOWN} /><//>` : null}
        ${objects.length ? html`<${Changes} objects=${objects} />` : null}
      </div>
    </div>
  `;
}

function Clients({ own }) {
  return html`<${Some} list=${own.called_by} most=${3} total=${own.clients} shown=${(each) => html`<${Link} href=${to("proxies", each)} text=${each} />`} />`;
}

/** The objects that decide about a service: the one that declares it, its routes and rules. */
function objectsOf(own, tree) {
  return [...new Set([own.config, ...(tree?.virtual_services ?? []).map((each) => each.object), ...(tree ? rulesOf(tree) : [])].filter(Boolean))];
}

/** The DestinationRules of a tree of routes. */
function rulesOf(tree) {
  const rules = tree.virtual_services.flatMap((each) => [...each.http, ...each.tls, ...each.tcp]);
  return [...new Set([...(tree.itself.rules ?? []), ...rules.flatMap((rule) => rule.to.flatMap((each) => each.rules ?? []))])];
}

function Routes({ tree }) {
  const rules = rulesOf(tree);
  const isRouted = tree.virtual_services.some((each) => each.gateways.includes("mesh"));
  return html`<${Trees} trees=${tree.virtual_services} more=${tree.more} />
    ${isRouted
      ? null
      : html`<ul class="tree">
          <li>
            From proxies of the mesh, any request
            <ul><${Destination} of=${{ ...tree.itself, share: 1 }} /></ul>
          </li>
        </ul>`}
    ${rules.length ? html`<p><span class="quiet">With </span><${Some} list=${rules} shown=${(each) => html`<${ObjectLink} text=${each} />`} /></p>` : null}`;
}

function Gateways({ list }) {
  return html`<${Part} title="Gateways that lead to it">
    <ul class="words">
      ${list.map(
        (each) => html`<li key=${`${each.gateway} ${each.object}`}>
          <${Link} href=${to("gateways", ...each.gateway.split("/"))} text=${each.gateway} />${" as "}<${Some} list=${each.hosts} most=${4} />
          <span class="quiet">${" by "}<${ObjectLink} text=${each.object} /></span>
        </li>`,
      )}
    </ul>
  <//>`;
}

function Endpoints({ own, parts, query }) {
  const found = { items: own.endpoints, total: own.endpoints_total, offset: own.offset ?? (Number(query.offset) || 0) };
  const rows = [...own.endpoints].sort((a, b) => (a.health === "HEALTHY") - (b.health === "HEALTHY"));
  const hasReasons = rows.some((each) => each.reason);
  const isFew = own.endpoints_total <= 8 || rows[0]?.health !== "HEALTHY";
  return html`<${Folded} title=${`Endpoints: ${number(own.health?.HEALTHY ?? 0)} of ${number(own.endpoints_total)} healthy`} open=${isFew || Boolean(query.offset)}>
    ${() => html`<${Table}
        label="Endpoints"
        rows=${rows}
        keyed=${(each) => `${each.address}:${each.port}`}
        columns=${[
          { head: "address", cell: (each) => html`<${Name} text=${`${each.address}${each.port ? `:${each.port}` : ""}`} />` },
          { head: "health", cell: (each) => html`<${Badge} text=${each.health.toLowerCase()} severity=${HEALTH[each.health]} sign=${each.health !== "HEALTHY"} />` },
          ...(hasReasons ? [{ head: "why", class: "text", cell: (each) => html`<${Name} text=${each.reason ?? ""} />` }] : []),
          { head: "port", cell: (each) => html`<${Name} text=${each.servicePort} />` },
          { head: "locality", cell: (each) => html`<${Name} text=${each.locality} />` },
          { head: "service account", cell: (each) => html`<span title=${plain(each.serviceAccount)}><${Name} text=${each.serviceAccount.split("/").at(-1)} /></span>` },
          { head: "labels", class: "text", cell: (each) => html`<${Labels} of=${each.labels} />` },
        ]}
      />
      <${Pager} found=${found} parts=${parts} query=${query} at="bottom" />`}
  <//>`;
}

const HEALTH = { HEALTHY: "ok", UNHEALTHY: "error", DRAINING: "warning" };

function Labels({ of = {} }) {
  return html`<span class="labels">${Object.entries(of).filter(([label]) => !label.includes("/")).slice(0, 8).map(([label, value]) => html`<code key=${label}><${Name} text=${`${label}=${value}`} most=${100} /></code> `)}</span>`;
}

/** The latest changes of some objects, and links to all of each. */
export function Changes({ objects }) {
  const [found] = useAnswer(["history"], { object: objects[0], limit: 5 });
  return html`<${Part} title="Changes">
    ${found?.items?.length
      ? html`<ul class="words">
          ${found.items.map(
            (each) => html`<li key=${each.revision}>
              <${Link} href=${to("changes", each.revision)} text=${`revision ${each.revision}`} />${" "}<${Time} at=${each.at} quiet />
              ${each.nacks ? html`${" "}<${Badge} text=${`refused by ${counted(each.nacks, "proxy")}`} severity="error" sign />` : null}
            </li>`,
          )}
        </ul>`
      : null}
    <p>
      <span class="quiet">All of </span><${Some} list=${objects} most=${6} shown=${(each) => html`<${Link} href=${toQuery(["changes"], { object: each })} text=${each} />`} />
    </p>
  <//>`;
}
