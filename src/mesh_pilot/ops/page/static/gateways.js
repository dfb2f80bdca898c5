// Gateways: what each exposes, from port and host to path and service, with its certificate and proxies.

import { get } from "./api.js";
import { Badge, Chips, Facts, Filter, Link, Name, ObjectLink, PAGE, Pager, Part, Place, Some, State, Table, Time, Verdict } from "./components.js";
import { html, to, toQuery } from "./lib.js";
import { Trees } from "./routes.js";
import { counted, number } from "./text.js";

const LISTED = ["gateways"];

export const views = [
  { at: "gateways", place: "traffic", title: "Gateways", load: loadGateways, show: Gateways },
  { at: "gateways/:namespace/:name", place: "traffic", title: "Gateway", load: loadGateway, show: Gateway },
];

function loadGateways(parts, query, signal) {
  const { q, namespace, offset } = query;
  return get(LISTED, { q, namespace, offset, limit: PAGE }, signal);
}

function Gateways({ data, query }) {
  const isFiltered = query.q || query.namespace;
  return html`
    <h1>Gateways</h1>
    ${data.total || isFiltered
      ? html`<div class="toolbar">
          <${Filter} parts=${LISTED} query=${query} label="names and hosts" />
          <${Chips} parts=${LISTED} query=${query} names=${["namespace"]} />
          <${Pager} found=${data} parts=${LISTED} query=${query} noun=${data.total === 1 ? "gateway" : "gateways"} />
        </div>`
      : null}
    <section class="part" aria-label="List">
      <${Table}
        label="Servers of gateways"
        rows=${data.items.flatMap((each) => (each.servers.length ? each.servers : [null]).map((server, index) => ({ ...each, server, index })))}
        keyed=${(each) => `${each.object} ${each.index}`}
        nothing=${isFiltered ? "The filter lets no gateway through." : "No Gateway is known: nothing outside the mesh comes in by one."}
        columns=${[
          {
            head: "gateway",
            cell: (each) => html`<${Link} href=${to("gateways", each.namespace, each.name)} text=${`${each.namespace}/${each.name}`} entry=${each.index === 0} />`,
          },
          { head: "state", cell: (each) => html`<${State} of=${each} />` },
          ...(data.items.some((each) => each.why) ? [{ head: "why", class: "text", cell: (each) => html`<${Name} text=${each.index ? "" : each.why} />` }] : []),
          { head: "port", isNumber: true, cell: (each) => each.server?.port ?? "" },
          { head: "protocol", cell: (each) => html`<${Name} text=${protocol(each.server)} />` },
          { head: "hosts", class: "hosts", cell: (each) => html`<${Some} list=${each.server?.hosts} most=${3} />` },
          {
            head: "leads to",
            class: "text",
            cell: (each) => html`<${Some} list=${each.server?.redirects ? [] : each.server?.leads_to} most=${4} shown=${(own) => html`<${Link} href=${to("services", own.namespace, own.host)} text=${own.host} />`} />`,
          },
          { head: "certificate expires", cell: (each) => html`<${Expiries} list=${each.server?.certificates} />` },
          { head: "routes", word: "routes", isNumber: true, cell: (each) => number(each.server?.routes) },
          { head: "proxies", isNumber: true, cell: (each) => number(each.proxies.count) },
        ]}
      />
      <${Pager} found=${data} parts=${LISTED} query=${query} at="bottom" />
    </section>
  `;
}

function protocol(server) {
  if (!server) return "";
  if (server.redirects) return `${server.protocol}, to HTTPS`;
  return server.tls && server.tls !== "SIMPLE" ? `${server.protocol}, ${server.tls.toLowerCase().replace("_", " ")}` : server.protocol;
}

function Expiries({ list = [] }) {
  return list.map((each) =>
    each.problem
      ? html`<${Badge} key=${each.name} text="unusable" severity="error" sign />`
      : each.expires
        ? html`<${Time} key=${each.name} at=${each.expires} />`
        : html`<span key=${each.name} class="quiet">at the proxy</span>`,
  );
}

// -- one gateway

function loadGateway(parts, query, signal) {
  return get(["gateways", parts[1], parts[2]], {}, signal);
}

function Gateway({ data }) {
  const { gateway, servers } = data;
  return html`
    <h1><${Name} text=${`${gateway.namespace}/${gateway.name}`} /></h1>
    <${Verdict} of=${gateway} fine=${`${counted(gateway.proxies.count, "connected proxy")} serve it.`.replace("proxy serve", "proxy serves")} />
    <section class="part" aria-label="Facts">
      <${Facts}
        pairs=${[
          ["object", html`<${ObjectLink} text=${gateway.object} />`],
          ["read from", html`<${Place} where=${gateway.origin} />`],
          ["proxies", gateway.proxies.count ? html`<${Some} list=${gateway.proxies.names} total=${gateway.proxies.count} shown=${(each) => html`<${Link} href=${to("proxies", each)} text=${each} />`} />` : "none is connected"],
          ["changes", html`<${Link} href=${toQuery(["changes"], { object: gateway.object })} text="its revisions" />`],
        ]}
      />
    </section>
    <div class="beside">${servers.map((each, index) => html`<${Server} key=${index} of=${each} proxy=${gateway.proxies.names[0] ?? ""} />`)}</div>
  `;
}

function Server({ of, proxy }) {
  const { server } = of;
  const scheme = server.tls ? "https" : "http";
  const host = of.virtual_services[0]?.hosts.find((each) => !each.includes("*"));
  return html`<${Part}
    title=${html`Port ${server.port} <span class="quiet">${protocol(server)}</span>`}
    aside=${host && proxy ? html`<a href=${toQuery(["ask"], { proxy, to: `${scheme}://${host}:${server.port}/` })}>what a request would meet</a>` : null}
  >
    <${Facts}
      pairs=${[
        ["hosts", html`<${Some} list=${server.hosts} most=${10} />`],
        ...server.certificates.map((each) => [
          "certificate",
          html`<${Name} text=${each.name} />${each.problem
              ? html`: <span class="bad"><${Name} text=${each.problem} /></span>`
              : each.expires
                ? html`, expires <${Time} at=${each.expires} />`
                : html`, a file that only the proxy sees`}`,
        ]),
      ]}
    />
    ${of.virtual_services.length && !server.redirects
      ? html`<${Trees} trees=${of.virtual_services} more=${of.more} withHosts />`
      : html`<p class=${server.redirects ? "quiet" : "warn"}>${server.redirects ? "Requests are sent to HTTPS." : "No VirtualService has one of its hosts: requests are answered 404."}</p>`}
  <//>`;
}
