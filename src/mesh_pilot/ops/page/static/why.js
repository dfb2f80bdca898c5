// A form that asks what a request of a proxy would meet: listener, route, cluster, endpoints, and the lines that decide.

import { ApiError, get } from "./api.js";
import { badge, h, name, place, toQuery } from "./dom.js";
import { objectLink } from "./parts.js";

const FIELDS = [
  ["from", "From the proxy", "web-1.shop", true],
  ["url", "To", "reviews.shop.svc.cluster.local:9080/path", true],
  ["method", "Method", "GET", false],
  ["header", "Header", "NAME=VALUE", false],
];

export async function why(parts, query, signal) {
  return [
    h("h1", {}, "What would a request meet?"),
    h(
      "form",
      { class: "ask", onsubmit: ask },
      FIELDS.map(([field, text, example, required]) =>
        h("label", {}, text, " ", h("input", { name: field, placeholder: example, required, value: query[field] ?? "", maxlength: "2000", autocomplete: "off" })),
      ),
      h("button", {}, "Ask"),
    ),
    query.from && query.url ? await answer(query, signal) : null,
  ];
}

function ask(event) {
  event.preventDefault();
  const asked = Object.fromEntries([...new FormData(event.target)].map(([field, value]) => [field, value.trim()]));
  location.hash = toQuery(["why"], asked).slice(1);
}

async function answer(query, signal) {
  let found;
  try {
    found = await get(["why"], query, signal);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return h("p", { class: "bad", role: "alert" }, name(error.message, 2000));
  }
  return [h("h2", {}, "Answer"), story(found)];
}

function story(found) {
  const steps = found.steps ?? found.story ?? found.lines ?? [];
  return h(
    "ol",
    { class: "story" },
    steps.map((each) => {
      if (typeof each === "string") return h("li", {}, name(each, 2000));
      const where = each.where ?? each.place ?? each.origin;
      return h(
        "li",
        {},
        each.step ?? each.kind ? [badge(each.step ?? each.kind), " "] : null,
        name(each.text ?? each.what ?? each.name ?? "", 2000),
        each.object ? [" ", objectLink(each.object)] : null,
        " ",
        place(where),
      );
    }),
  );
}
