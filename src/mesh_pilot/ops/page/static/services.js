// Services: their list, and one with its endpoints, its routes and those who may reach it.

import { get, maybe, rarely } from "./api.js";
import { badge, h, link, name, place, to, toQuery } from "./dom.js";
import { PAGE, entry, facts, names, objectLink, paged, pager, table } from "./parts.js";

/** Sections of the description that the view shows in a way of its own. */
const KNOWN = ["Service", "Ports", "Endpoints", "Routing"];

const HEALTH = { HEALTHY: "good", UNHEALTHY: "bad", DRAINING: "warn" };

export async function services(parts, query, signal) {
  const found = await get(["services"], { q: query.q, namespace: query.namespace, limit: PAGE, offset: query.offset }, signal);
  return [
    h("h1", {}, "Services"),
    paged("services", query, found, "Services", ["host", "namespace", "registry", "ports", "endpoints"], (each) => [
      entry(to("services", each.namespace, each.host), each.host),
      h("a", { href: toQuery(["services"], { namespace: each.namespace }) }, name(each.namespace)),
      name(each.registry),
      names(each.ports ?? [], 4, (port) => name(`${port.number} ${port.protocol}`)),
      health(each.health),
    ]),
  ];
}

/** The numbers of endpoints by health. */
export function health(counts) {
  const found = Object.entries(counts ?? {});
  if (!found.length) return h("span", { class: "quiet" }, "none");
  return h("span", { class: "states" }, found.map(([state, count]) => badge(`${count} ${state.toLowerCase()}`, HEALTH[state])));
}

export async function service(parts, query, signal) {
  const [, namespace, host] = parts;
  const [own, tree, described] = await Promise.all([
    get(["services", namespace, host], { limit: PAGE, offset: query.offset }, signal),
    maybe(["services", namespace, host, "routes"], {}, signal),
    rarely(["describe", "service", host], { namespace }),
  ]);
  const total = Object.values(own.health ?? {}).reduce((sum, count) => sum + count, 0);
  const offset = Number(query.offset ?? 0) || 0;
  return [
    h("h1", {}, name(host)),
    facts([
      ["namespace", namespace],
      ["registry", own.registry],
      ["declared by", own.config ? objectLink(own.config) : null],
      ["resolution", own.resolution],
      ["addresses", own.addresses?.length ? names(own.addresses, 10) : null],
      ["outside the mesh", own.external ? "yes" : null],
      ["endpoints", health(own.health)],
    ]),
    table(
      "Ports",
      ["port", "name", "protocol"],
      (own.ports ?? []).map((port) => [port.number, name(port.name), name(port.protocol)]),
    ),
    h("h2", {}, "Routes"),
    tree ? routeTree(tree) : h("p", { class: "quiet" }, "This control plane does not tell."),
    h("h2", {}, "Who may reach it"),
    reach(own, described),
    h("h2", {}, "Endpoints"),
    total > PAGE
      ? pager({ items: own.endpoints, total, offset }, (changed) => toQuery(["services", namespace, host], changed))
      : null,
    table(
      "Endpoints",
      ["address", "port", "health", "locality", "service account", "labels"],
      (own.endpoints ?? []).map((each) => [
        name(each.address),
        each.port,
        badge(each.health.toLowerCase(), HEALTH[each.health]),
        name(each.locality),
        name(each.serviceAccount),
        names(Object.entries(each.labels ?? {}), 8, ([label, value]) => h("code", {}, name(`${label}=${value}`, 100))),
      ]),
      "There are none.",
    ),
  ];
}

function reach(own, described) {
  const scope = own.exportTo ?? [];
  const visible = !scope.length
    ? "Visible as the mesh's defaults say (all namespaces, unless changed)."
    : scope.includes("*")
      ? "Visible to proxies of all namespaces."
      : `Visible to proxies of: ${scope.map((each) => (each === "." ? own.namespace : each === "~" ? "no namespace" : each)).join(", ")}.`;
  return [h("p", {}, name(visible, 1000)), words(described, KNOWN)];
}

/** The sections of `describe`, but those whose titles begin with one that is `known` from elsewhere. */
export function words(described, known = []) {
  if (!described) return null;
  return described.sections
    .filter((section) => !known.some((each) => section.title.startsWith(each)) && section.lines.length)
    .map((section) => [
      h("h3", {}, name(section.title)),
      h(
        "ul",
        { class: "words" },
        section.lines.slice(0, 100).map((line) =>
          h("li", {}, name(line.text, 2000), line.object ? [" ", h("span", { class: "by" }, objectLink(line.object), " ", place(line.place))] : null),
        ),
      ),
    ]);
}

/** The routes of a host as a tree: nested lists, so that it reads as one without a picture, too. */
export function routeTree(tree) {
  const mesh = tree.virtual_services.some((each) => each.gateways.includes("mesh"));
  return [
    tree.virtual_services.map((each) => virtualService(each)),
    tree.more ? h("p", { class: "quiet" }, `and ${tree.more} more VirtualServices`) : null,
    mesh
      ? null
      : h(
          "ul",
          { class: "tree" },
          h("li", {}, "from proxies of the mesh: any request", h("ul", {}, destination({ ...tree.itself, share: 1 }))),
        ),
  ];
}

function virtualService(each) {
  const rules = [...each.http, ...each.tls.map(kind("TLS")), ...each.tcp.map(kind("TCP"))];
  return h(
    "ul",
    { class: "tree", "data-key": each.object },
    h(
      "li",
      {},
      objectLink(each.object),
      " ",
      place(each.origin),
      h("span", { class: "quiet" }, " at ", names(each.gateways, 5)),
      h("ul", {}, rules.length ? rules.map(rule) : h("li", { class: "quiet" }, "no rule")),
    ),
  );
}

function kind(protocol) {
  return (each) => ({ ...each, protocol });
}

function rule(each, index) {
  const what = each.protocol ? `any ${each.protocol} connection` : "any request";
  const last = !each.to.length && !each.actions.length;
  return h(
    "li",
    {},
    h("span", { class: "number" }, `${index + 1}.`),
    " ",
    each.match.length
      ? each.match.map((match, at) => [at ? h("span", { class: "quiet" }, " or ") : null, h("span", { class: "match" }, name(match))])
      : h("span", { class: "match" }, what),
    each.name ? h("span", { class: "quiet" }, " ", name(each.name)) : null,
    each.actions.map((action) => [" ", badge(action)]),
    h("ul", {}, each.to.map(destination), last ? h("li", { class: "bad" }, "nowhere") : null),
  );
}

function destination(each) {
  const percent = Math.round(each.share * 1000) / 10;
  const bar = h("meter", { min: "0", max: "1", value: String(each.share), "aria-label": `share of ${each.host}` }, `${percent} %`);
  const shown = [each.host, each.port ? `:${each.port}` : ""].join("");
  return h(
    "li",
    { class: each.problem ? "bad" : null },
    bar,
    h("span", { class: "share" }, `${percent} %`),
    " ",
    each.namespace ? link(to("services", each.namespace, each.host), shown) : name(shown),
    each.subset ? [" ", badge(each.subset)] : null,
    each.problem
      ? h("span", { class: "reason" }, " ", name(each.problem))
      : h("span", { class: "quiet" }, ` ${each.healthy} of ${each.endpoints} endpoints healthy`),
    each.rules?.length ? h("span", { class: "quiet" }, " ", names(each.rules, 2, (own) => objectLink(own))) : null,
  );
}
