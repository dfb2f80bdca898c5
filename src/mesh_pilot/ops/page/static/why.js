// A form that asks what a request of a proxy would meet: listener, route, cluster, endpoints, and the lines that decide.

import { ApiError, get } from "./api.js";
import { badge, h, link, name, place, to, toQuery } from "./dom.js";
import { objectLink } from "./parts.js";

const FIELDS = [
  ["proxy", "From the proxy", "web-1.shop", true],
  ["to", "To", "reviews.shop.svc.cluster.local:9080/path", true],
  ["method", "Method", "GET", false],
  ["header", "Headers", "NAME=VALUE, and others after a semicolon", false],
];

export async function why(parts, query, signal) {
  return [
    h("h1", {}, "What would a request meet?"),
    h(
      "form",
      { class: "ask", onsubmit: ask },
      FIELDS.map(([field, text, example, required]) =>
        h(
          "label",
          {},
          text,
          " ",
          h("input", { name: field, placeholder: example, required, value: query[field] ?? "", maxlength: "2000", autocomplete: "off", spellcheck: "false" }),
        ),
      ),
      h("button", {}, "Ask"),
    ),
    query.proxy && query.to ? await answer(query, signal) : null,
  ];
}

function ask(event) {
  event.preventDefault();
  const asked = Object.fromEntries([...new FormData(event.target)].map(([field, value]) => [field, value.trim()]));
  location.hash = toQuery(["ask"], asked).slice(1);
}

async function answer(query, signal) {
  const headers = (query.header ?? "").split(";").map((each) => each.trim());
  let found;
  try {
    found = await get(["why"], { proxy: query.proxy, to: query.to, method: query.method, header: headers.filter(Boolean) }, signal);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return h("p", { class: "bad", role: "alert" }, name(error.message, 2000));
  }
  return [h("h2", {}, "Answer"), story(found), found.destinations?.map((each) => [h("h3", {}, "At ", link(to("proxies", each.proxy), each.proxy), " ", name(each.endpoint)), story(each)])];
}

function story(found) {
  return [
    h("p", { class: "outcome" }, name(found.outcome, 2000)),
    h("ol", { class: "story" }, found.steps.map(step)),
    found.nearly.length ? [h("h3", {}, "Nearly chosen"), h("ul", {}, found.nearly.map(step))] : null,
    found.notes.map((note) => h("p", { class: "quiet" }, name(note, 2000))),
  ];
}

function step(each) {
  return h(
    "li",
    {},
    badge(each.step),
    " ",
    name(each.text, 2000),
    each.decided_by.map((by) => h("div", { class: "by" }, objectLink(by.object), " ", h("code", {}, name(by.field)), " ", place(by.place), " ", name(by.text))),
  );
}
