// Proxies: those that are not in sync first, the others by group; one with its verdict, certificate, and what it was sent.

import { ApiError, get, maybe } from "./api.js";
import {
  Badge, Chips, Code, Described, Facts, Filter, Folded, Link, Name, ObjectLink, PAGE, Pager, Part, Some, State, States, Table, Time, Verdict, Word, bytes,
  useAnswer,
} from "./components.js";
import { html, to, toQuery, useState } from "./lib.js";
import { CallsOfProxy } from "./servicecalls.js";
import { counted, number, yaml } from "./text.js";

const LISTED = ["proxies"];

export const views = [
  { at: "proxies", place: "proxies", title: "Proxies", load: loadProxies, show: Proxies },
  { at: "proxies/:name", place: "proxies", title: "Proxy", load: loadProxy, show: Proxy },
  { at: "proxies/:name/:type/:resource", place: "proxies", title: "Resource", load: loadResource, show: Resource },
];

// -- the list

/** Without a filter: all that is ill, and the groups of the others. With one: what it lets through. */
function isOverview(query) {
  return !["q", "state", "sort", "offset", "namespace"].some((name) => query[name]);
}

async function loadProxies(parts, query, signal) {
  const { q, namespace, sort, offset } = query;
  if (!isOverview(query)) {
    const state = query.state === "all" ? "" : query.state;
    return { found: await get(LISTED, { q, namespace, state, sort, offset, limit: PAGE }, signal) };
  }
  const [ill, groups] = await Promise.all([
    get(LISTED, { state: "ill", sort: "severity", limit: PAGE }, signal),
    get(["proxy-groups"], {}, signal),
  ]);
  return { ill, found: { total: ill.counts["in sync"] ?? 0, counts: ill.counts }, groups };
}

function Proxies({ data, query }) {
  const { ill, found, groups } = data;
  return html`
    <h1>Proxies</h1>
    <div class="toolbar">
      <${Filter} parts=${LISTED} query=${query} label="proxies" />
      <${States} counts=${found.counts} parts=${LISTED} query=${query} />
      <${Chips} parts=${LISTED} query=${query} names=${["namespace"]} />
      ${ill ? null : html`<${Pager} found=${found} parts=${LISTED} query=${query} noun=${found.total === 1 ? "proxy" : "proxies"} />`}
    </div>
    ${ill
      ? html`${ill.total
            ? html`<section class="part" aria-label="Not in sync">
                <div class="title"><h2>Not in sync: ${counted(ill.total, "proxy")}</h2>${ill.total > PAGE ? html`<a href=${toQuery(LISTED, { state: "ill" })}>all of them</a>` : null}</div>
                <${Ill} rows=${ill.items} query=${{ state: "ill" }} />
              </section>`
            : null}
          <${Well} found=${found} groups=${groups} isAlone=${!ill.total} />`
      : html`<section class="part" aria-label="List">
          ${["ill", "gone"].includes(query.state) || (found.items.length && found.items.every((each) => each.severity !== "ok"))
            ? html`<${Ill} rows=${found.items} query=${query} />`
            : html`<${All} rows=${found.items} query=${query} />`}
          <${Pager} found=${found} parts=${LISTED} query=${query} at="bottom" />
        </section>`}
  `;
}

function Well({ found, groups, isAlone }) {
  if (!found.total && isAlone) {
    return html`<section class="part"><h2>No proxy is connected</h2><p>Give one an identity with <code>mesh-pilot token create</code> and start it with <code>mesh-pilot proxy</code>.</p></section>`;
  }
  if (!found.total) return null;
  return html`<section class="part" aria-label="In sync">
    <div class="title"><h2>In sync: ${counted(found.total, "proxy")}</h2><a href=${toQuery(LISTED, { state: "in sync" })}>list them</a></div>
    <ul class="plainlist groups">
      ${groups.map(
        (each) => html`<li key=${`${each.proxy_type} ${each.proxy_version} ${each.namespace}`}>
          <a href=${toQuery(LISTED, { state: "in sync", namespace: each.namespace })} data-entry
            >${number(each.count)} ${each.proxy_type === "router" ? (each.count === 1 ? "gateway" : "gateways") : each.count === 1 ? "sidecar" : "sidecars"} in <${Name} text=${each.namespace} /></a
          >${" "}<span class="quiet">${each.proxy_version ? html`Envoy <${Name} text=${each.proxy_version} />` : "version unknown"}</span>
        </li>`,
      )}
    </ul>
  </section>`;
}

const nameOf = (each) => html`<${Link} href=${to("proxies", each.proxy)} text=${each.proxy} entry />`;
const NAME = { head: "name", sort: "proxy", cell: nameOf };
const STATE = { head: "state", sort: "severity", cell: (each) => html`<${State} of=${each} />` };
const keyed = (each) => `${each.proxy_id} ${each.connected_at ?? ""}`;

function Ill({ rows, query }) {
  return html`<${Table}
    label="Proxies that are not in sync"
    rows=${rows}
    keyed=${keyed}
    parts=${LISTED}
    query=${query}
    nothing="There is none."
    columns=${[
      NAME,
      STATE,
      { head: "why", class: "text", cell: (each) => html`<${Name} text=${each.why} most=${300} />` },
      { head: "since", sort: "since", isDescending: true, cell: (each) => html`<${Time} at=${each.since ?? each.last_seen} />` },
      { head: "Envoy", sort: "proxy_version", cell: (each) => html`<${Name} text=${each.proxy_version} />` },
      { head: "revision", sort: "revision", isDescending: true, isNumber: true, cell: (each) => each.revision },
    ]}
  />`;
}

function All({ rows, query }) {
  return html`<${Table}
    label="Proxies"
    rows=${rows}
    keyed=${keyed}
    parts=${LISTED}
    query=${query}
    nothing=${query.q ? "No proxy has this in its name." : "There is none."}
    columns=${[
      NAME,
      STATE,
      { head: "type", sort: "proxy_type", cell: (each) => (each.proxy_type === "router" ? "gateway" : each.proxy_type) },
      { head: "address", sort: "address", cell: (each) => html`<${Name} text=${each.address} />` },
      { head: "Envoy", sort: "proxy_version", cell: (each) => html`<${Name} text=${each.proxy_version} />` },
      { head: "agent", sort: "agent", cell: (each) => html`<${Name} text=${each.agent} />` },
      { head: "certificate expires", sort: "certificate_expires", cell: (each) => html`<${Time} at=${each.certificate_expires} />` },
      { head: "revision", sort: "revision", isDescending: true, isNumber: true, cell: (each) => each.revision },
      { head: "connected", sort: "connected_at", isDescending: true, cell: (each) => html`<${Time} at=${each.connected_at} />` },
    ]}
  />`;
}

// -- one proxy

async function loadProxy(parts, query, signal) {
  const [found, described] = await Promise.all([
    get(["proxies", parts[1]], {}, signal),
    maybe(["describe", "proxy", parts[1]], {}, signal).catch(() => null),
  ]);
  if (!found.streams.length) throw new ApiError(404, `${parts[1].slice(0, 300)} is not connected, and never was`);
  return { found, described };
}

function Proxy({ data, parts, query }) {
  const { found, described } = data;
  const { streams } = found;
  return html`
    <h1><${Name} text=${parts[1]} /></h1>
    ${streams.length > 1 ? html`<p class="warn">${counted(streams.length, "proxy")} have this name; their addresses tell them apart.</p>` : null}
    ${streams.map((own) => html`<${Stream} key=${`${own.proxy_id} ${own.connected_at ?? "gone"}`} own=${own} />`)}
    ${described ? html`<${Part} title="What applies to it"><div class="wide"><${Described} described=${described} known=${["Proxy"]} /></div><//>` : null}
    <${Folded} title="What it calls">${() => html`<${CallsOfProxy} id=${parts[1]} />`}<//>
    ${streams.some((own) => !own.gone) ? html`<${Sent} id=${parts[1]} query=${query} types=${Object.keys(streams.find((own) => !own.gone).status ?? {})} />` : null}
  `;
}

function Stream({ own }) {
  const types = Object.entries(own.status ?? {});
  const others = types.filter(([, state]) => SAID[state]);
  return html`
    <${Verdict} of=${own} fine="It has accepted all that it was sent." command=${own.command ?? ""}>
      ${(own.refused ?? []).map((each) => html`<${Refusal} key=${each.type} of=${each} isTold=${(own.why ?? "").includes(each.reason)} />`)}
      ${others.length ? html`<p class="badges">${others.map(([type, state]) => html`<${Badge} key=${type} text=${`${type} ${SAID[state]}`} severity="warning" />`)}</p>` : null}
      ${(own.withheld ?? []).length
        ? html`<h2>Withheld from it</h2>
            <ul class="words">${own.withheld.map((each) => html`<li key=${each.object}><${ObjectLink} text=${each.object} /> <span class="quiet"><${Name} text=${each.from ? `from ${each.from}` : ""} /></span></li>`)}</ul>`
        : null}
      ${(own.trial ?? []).length ? html`<p>On <${Word} text="trial" /> without <${Some} list=${own.trial} shown=${(each) => html`<${ObjectLink} text=${each} />`} /></p>` : null}
      ${(own.warming ?? []).map(
        (each) => html`<h2>It has accepted ${each.type} and does not use it</h2>
          <p><${Name} text=${each.resource} /> waits for <${Some} list=${each.waits_for} />${each.held ? html`. <${Name} text=${each.held} most=${500} />` : null}</p>`,
      )}
      ${(own.failing ?? []).map((each) => html`<p><${Name} text=${each.failure} />: <${Name} text=${each.error} most=${1000} /></p>`)}
    <//>
    <section class="part" aria-label="Facts">
      <${Facts}
        pairs=${[
          ["type", own.proxy_type === "router" ? "gateway" : own.proxy_type],
          ["address", own.address],
          ["Envoy", own.proxy_version],
          ["agent", own.agent],
          ["node id", own.proxy_id],
          ["xDS", own.xds],
          ["revision", html`<a href=${to("changes", own.revision)}>${own.revision}</a>`, "revision"],
          ["certificate expires", own.certificate_expires ? html`<${Time} at=${own.certificate_expires} />` : null],
          own.gone ? ["last seen", html`<${Time} at=${own.last_seen} />`] : ["connected", html`<${Time} at=${own.connected_at} />`],
          ["refusals", html`<a href=${toQuery(["changes"], { proxy: own.proxy })}>changes that it refused</a>`],
        ]}
      />
    </section>
  `;
}

/** The states of a type that nothing else says something about. */
const SAID = { STALE: "pending", "NOT SENT": "not sent" };

function Refusal({ of, isTold }) {
  return html`<h2>It refuses <${Word} text=${of.type} /></h2>
    ${isTold ? null : html`<p><${Name} text=${of.reason} most=${2000} /></p>`}
    <p class="quiet">
      <${Time} at=${of.at} />${of.resources?.length ? html`: <${Some} list=${of.resources} />` : null}
      ${of.configs?.length ? html`, made from <${Some} list=${of.configs} shown=${(each) => html`<${ObjectLink} text=${each} />`} />` : null}
    </p>
    ${of.held ? html`<p><${Name} text=${of.held} most=${500} /></p>` : null}`;
}

function Sent({ id, query, types }) {
  const [type, setType] = useState(query.type && types.includes(query.type) ? query.type : (types[0] ?? "CDS"));
  return html`<${Folded} title="What it was sent" aside=${html`<span class="quiet">${types.join(", ")}</span>`} open=${Boolean(query.type)}>
    ${() => html`<p class="chips" role="group" aria-label="Types">
        ${types.map((each) => html`<button type="button" key=${each} class="chip" aria-current=${each === type ? "true" : null} onClick=${() => setType(each)}>${each}</button>`)}
      </p>
      <${Resources} key=${type} id=${id} type=${type} query=${query} />
      <p><a href=${`/debug/config_dump?proxyID=${encodeURIComponent(id)}`}>All of it, as Envoy's /config_dump</a></p>`}
  <//>`;
}

function Resources({ id, type, query }) {
  const parts = ["proxies", id];
  const kept = { ...query, type };
  const [found, error] = useAnswer(["proxies", id, "resources", type], { q: query.q, limit: PAGE, offset: query.offset });
  if (error) return html`<p class="failed"><${Name} text=${error.message} most=${500} /></p>`;
  if (!found) return html`<p class="quiet">reading</p>`;
  return html`
    <div class="toolbar">
      <${Filter} parts=${parts} query=${kept} label=${`${type} names`} />
      <${Pager} found=${found} parts=${parts} query=${kept} noun=${found.total === 1 ? "resource" : "resources"} />
    </div>
    ${found.is_acked ? null : html`<p class="bad">The last response was not accepted.</p>`}
    <${Table}
      label=${`Resources of ${type}`}
      rows=${found.items}
      keyed=${(each) => each.name}
      nothing="It was sent none."
      columns=${[
        { head: "name", cell: (each) => html`<${Link} href=${to("proxies", id, type, each.name)} text=${each.name} entry />` },
        { head: "size", isNumber: true, cell: (each) => bytes(each.bytes) },
        { head: "made from", cell: (each) => html`<${Some} list=${each.made_from} most=${4} shown=${(own) => html`<${ObjectLink} text=${own} />`} />` },
      ]}
    />
    <p class="quiet">version <${Code} text=${found.version} most=${80} /></p>
    <${Pager} found=${found} parts=${parts} query=${kept} at="bottom" />
  `;
}

// -- a resource

function loadResource(parts, query, signal) {
  return get(["proxies", parts[1], "resource", parts[2]], { resource: parts[3] }, signal);
}

function Resource({ data, parts }) {
  const [, id, type, own] = parts;
  return html`
    <h1><${Name} text=${own} /></h1>
    <section class="part">
      <${Facts}
        pairs=${[
          ["proxy", html`<${Link} href=${to("proxies", id)} text=${id} />`],
          ["type", html`<${Word} text=${type} />`],
          ["version", data.version],
          ["made from", data.made_from.length ? html`<${Some} list=${data.made_from} most=${10} shown=${(each) => html`<${ObjectLink} text=${each} />`} />` : null],
        ]}
      />
      <pre class="yaml" tabindex="0">${yaml(data.resource).trimStart()}</pre>
    </section>
  `;
}
