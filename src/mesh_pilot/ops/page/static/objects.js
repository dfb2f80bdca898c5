// Objects: their list, and one with its problems and what it produces.

import { get, rarely } from "./api.js";
import { badge, h, link, name, place, to, toQuery } from "./dom.js";
import { PAGE, entry, facts, paged, table, yaml } from "./parts.js";
import { words } from "./services.js";

/** Sections of the description that the view shows in a way of its own. */
const KNOWN = ["Object", "Produces"];

export async function objects(parts, query, signal) {
  const asked = { q: query.q, kind: query.kind, namespace: query.namespace, limit: PAGE, offset: query.offset };
  const found = await get(["objects"], asked, signal);
  return [
    h("h1", {}, query.kind ? ["Objects of kind ", name(query.kind)] : "Objects"),
    query.kind || query.namespace ? h("p", {}, h("a", { href: "#/objects" }, "all objects")) : null,
    paged("objects", query, found, "Objects", ["name", "kind", "namespace", "warnings", "where"], (each) => [
      entry(to("objects", each.kind, each.namespace, each.name), each.name),
      h("a", { href: toQuery(["objects"], { kind: each.kind }) }, name(each.kind)),
      h("a", { href: toQuery(["objects"], { namespace: each.namespace }) }, name(each.namespace)),
      each.warnings ? badge(each.warnings, "warn") : "",
      place(each.origin),
    ]),
  ];
}

export async function object(parts, query, signal) {
  const [, kind, namespace, own] = parts;
  const [found, described] = await Promise.all([
    get(["objects", kind, namespace, own], {}, signal),
    rarely(["describe", "object", kind, namespace, own]),
  ]);
  const config = found.object;
  return [
    h("h1", {}, name(own)),
    facts([
      ["kind", kind],
      ["namespace", namespace],
      ["read from", config ? place(config.origin) : null],
      ["state", config ? badge("in force", "good") : badge("refused", "bad")],
    ]),
    found.problems.length
      ? h(
          "section",
          { class: "problems bad" },
          h("h2", {}, "Problems"),
          h(
            "ul",
            {},
            found.problems.map((each) =>
              h(
                "li",
                {},
                badge(each.severity, each.severity === "error" ? "bad" : "warn"),
                " ",
                each.field ? h("span", { class: "detail" }, name(each.field)) : null,
                h("span", { class: "reason" }, name(each.reason, 2000)),
                place(each.where),
              ),
            ),
          ),
        )
      : h("p", { class: "good" }, "Nothing is wrong with it."),
    words(described, KNOWN),
    h("h2", {}, "What it produces"),
    table(
      "Resources made from it",
      ["type", "resource", "proxies", "such as"],
      found.produces.map((each) => [
        each.type,
        link(to("proxies", each.first, each.type, each.name), each.name),
        each.proxies,
        link(to("proxies", each.first), each.first),
      ]),
      "Nothing that a connected proxy holds.",
    ),
    config ? [h("h2", {}, "As it is in force"), h("pre", { class: "yaml", tabindex: "0" }, yaml(shown(config)).trimStart())] : null,
  ];
}

function shown({ origin, ...config }) {
  return config;
}
