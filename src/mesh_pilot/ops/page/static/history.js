// History: the latest revisions, and one with the objects that it changed, as diffs.

import { maybe } from "./api.js";
import { badge, h, link, name, to } from "./dom.js";
import { REVISION_HEADS, revisionRows, revisions } from "./overview.js";
import { diff, facts, names, objectLink, table, time } from "./parts.js";

const LATEST = 100;

export async function history(parts, query, signal) {
  if (parts.length > 1) return revision(parts[1], signal);
  const latest = await revisions(LATEST, signal);
  return [
    h("h1", {}, "History"),
    table("Revisions", REVISION_HEADS, revisionRows(latest), "There is no revision yet."),
  ];
}

async function revision(text, signal) {
  const number = Number(text) || 0;
  const [kept, differences] = await Promise.all([
    maybe(["history", String(number)], {}, signal),
    number > 0 ? maybe(["history", String(number - 1), "diff"], { to: number }, signal) : null,
  ]);
  const own = kept ?? (await revisions(LATEST, signal)).find((each) => each.revision === number);
  if (!own) return [h("h1", {}, `Revision ${number}`), h("p", { role: "alert" }, "It is not known any more.")];
  return [
    h("h1", {}, `Revision ${number}`),
    facts([
      ["published", own.at ? time(own.at) : null],
      ["causes", own.causes?.length ? names(own.causes, 10, (each) => objectLink(each)) : null],
      ["proxies sent to", own.proxies],
      ["waiting", own.waiting ? badge(`${own.waiting} have not answered`, "warn") : null],
      ["NACKs", typeof own.nacks === "number" && own.nacks ? badge(own.nacks, "bad") : null],
    ]),
    Array.isArray(own.nacks) && own.nacks.length
      ? h(
          "section",
          { class: "problems bad" },
          h("h2", {}, "Refused by proxies"),
          h("ul", {}, own.nacks.slice(0, 50).map((each) => h("li", {}, link(to("proxies", each.proxy), each.proxy), " ", name(`${each.type}: ${each.reason}`, 1000)))),
        )
      : null,
    h("h2", {}, "Changes"),
    changes(own, differences),
  ];
}

function changes(own, differences) {
  const found = differences?.items ?? [];
  if (found.length) {
    return found.slice(0, 100).map((each) => [
      h("h3", {}, objectLink(each.name), each.action ? [" ", badge(each.action)] : null),
      each.diff?.length ? diff(each.diff) : null,
    ]);
  }
  if (!own.changes) return h("p", { class: "quiet" }, "This control plane keeps no history of objects (see --state-dir).");
  return table(
    "Changed objects",
    ["object", "source", "action", "cause"],
    own.changes.slice(0, 500).map((each) => [objectLink(each.object), name(each.source), each.action, name(each.cause)]),
    "No object: endpoints, or what the control plane makes itself.",
  );
}
