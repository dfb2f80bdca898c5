// Proxies: their list, one with the state of its types and what it was sent.

import { ApiError, get, maybe, rarely } from "./api.js";
import { badge, h, link, name, to, toQuery } from "./dom.js";
import { PAGE, entry, facts, filter, names, objectLink, paged, pager, states, table, time, yaml } from "./parts.js";
import { words } from "./services.js";

/** Sections of the description that the view shows in a way of its own. */
const KNOWN = ["Proxy"];

export async function proxies(parts, query, signal) {
  const found = await get(["proxies"], { q: query.q, limit: PAGE, offset: query.offset }, signal);
  return [
    h("h1", {}, "Proxies"),
    paged(
      "proxies",
      query,
      found,
      "Proxies",
      ["name", "state", "type", "Envoy", "agent", "xDS", "revision", "connected since"],
      (each) => [
        entry(to("proxies", each.proxy), each.proxy),
        [states(each.status), each.refused?.length ? badge(`${each.refused.length} refused`, "bad") : null, each.warming?.length ? badge(`${each.warming.length} warming`, "bad") : null],
        name(each.proxy_type),
        name(each.proxy_version),
        name(each.agent),
        each.xds,
        each.revision,
        time(each.connected_at),
      ],
      "None is connected.",
    ),
  ];
}

export async function proxy(parts, query, signal) {
  const [, id] = parts;
  const type = query.type ?? "CDS";
  const [found, described, resources] = await Promise.all([
    get(["proxies"], { q: id, limit: PAGE }, signal),
    rarely(["describe", "proxy", id]),
    maybe(["proxies", id, "resources", type], { q: query.q, limit: PAGE, offset: query.offset }, signal),
  ]);
  const streams = found.items.filter((each) => each.proxy === id || each.proxy_id === id);
  if (!streams.length) throw new ApiError(404, `${id.slice(0, 300)} is not connected`);
  return [
    h("h1", {}, name(id)),
    streams.map((own) => stream(own)),
    words(described, KNOWN),
    h("h2", {}, "What it was sent"),
    h(
      "p",
      { class: "tabs", role: "group", "aria-label": "Types" },
      Object.keys(streams[0].status ?? {}).map((each) =>
        h("a", { href: toQuery(["proxies", id], { type: each }), "aria-current": each === type ? "true" : null }, each),
      ),
    ),
    resources
      ? sent(id, type, query, resources)
      : h("p", { class: "quiet" }, `It was sent nothing of ${type}.`),
    h("p", {}, h("a", { href: `/debug/config_dump?proxyID=${encodeURIComponent(id)}` }, "All of it, as Envoy's /config_dump")),
  ];
}

function stream(own) {
  return [
    facts([
      ["state", states(own.status)],
      ["type", own.proxy_type],
      ["Envoy", own.proxy_version],
      ["agent", own.agent],
      ["node id", own.proxy_id],
      ["xDS", own.xds],
      ["revision", link(to("history", own.revision), own.revision)],
      ["connected since", time(own.connected_at)],
    ]),
    (own.refused ?? []).map((each) => nack(each)),
    (own.warming ?? []).map((each) => warming(each)),
    (own.failing ?? []).map((each) => h("section", { class: "problems bad" }, h("p", {}, name(each.failure), ": ", name(each.error, 1000)))),
    own.quarantined?.length
      ? h("section", { class: "problems warn" }, h("h3", {}, "Withheld from it"), h("ul", {}, own.quarantined.map((each) => h("li", {}, objectLink(each.object ?? each)))))
      : null,
  ];
}

function warming(each) {
  return h(
    "section",
    { class: "problems bad" },
    h("h3", {}, `It has accepted ${each.type} and does not use it`),
    h("p", {}, name(each.resource), " waits for ", names(each.waits_for, 5)),
    each.held ? h("p", {}, name(each.held, 500)) : null,
  );
}

function nack(each) {
  return h(
    "section",
    { class: "problems bad" },
    h("h3", {}, `It refuses ${each.type}`),
    h("p", { class: "reason" }, name(each.reason, 2000)),
    h("p", { class: "quiet" }, time(each.at), " ", names(each.resources, 5)),
    each.configs?.length ? h("p", {}, "made from ", names(each.configs, 5, (own) => objectLink(own))) : null,
    each.held ? h("p", {}, name(each.held, 500)) : null,
  );
}

function sent(id, type, query, resources) {
  const keep = { type, q: query.q };
  return [
    resources.is_acked ? null : h("p", { class: "bad" }, "The last response was not accepted."),
    h("p", { class: "quiet" }, "version ", h("code", {}, name(resources.version))),
    filter(["proxies", id], { ...keep, offset: query.offset }, `${type} names`),
    pager(resources, (changed) => toQuery(["proxies", id], { ...keep, ...changed })),
    table(
      `Resources of ${type}`,
      ["name", "bytes", "made from"],
      resources.items.map((each) => [
        entry(to("proxies", id, type, each.name), each.name),
        each.bytes,
        names(each.made_from, 4, (own) => objectLink(own)),
      ]),
      "It was sent none.",
    ),
  ];
}

export async function resource(parts, query, signal) {
  const [, id, type, own] = parts;
  const found = await get(["proxies", id, "resource", type], { resource: own }, signal);
  return [
    h("h1", {}, name(own)),
    facts([
      ["proxy", link(to("proxies", id), id)],
      ["type", type],
      ["version", found.version],
      ["made from", found.made_from.length ? names(found.made_from, 10, (each) => objectLink(each)) : null],
    ]),
    found.is_acked ? null : h("p", { class: "bad" }, "It has not accepted the last response of this type."),
    h("h2", {}, "What it has"),
    h("pre", { class: "yaml", tabindex: "0" }, yaml(found.resource).trimStart()),
  ];
}
