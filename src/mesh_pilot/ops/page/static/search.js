// Search over services, objects and proxies.

import { get } from "./api.js";
import { h, name, to } from "./dom.js";
import { entry } from "./parts.js";

export async function search(parts, query, signal) {
  if (!query.q) return [h("h1", {}, "Search"), h("p", {}, "Write a part of a name above.")];
  const found = await get(["search"], { q: query.q }, signal);
  const groups = [
    ["Services", found.services, ([namespace, host]) => [to("services", namespace, host), host, namespace]],
    ["Objects", found.objects, ([kind, namespace, own]) => [to("objects", kind, namespace, own), own, `${kind} in ${namespace}`]],
    ["Proxies", found.proxies, ([own]) => [to("proxies", own), own, ""]],
  ].filter(([, list]) => list.total);
  return [
    h("h1", {}, "Search: ", name(query.q)),
    groups.length ? null : h("p", { role: "status" }, "Nothing has this in its name."),
    groups.map(([title, list, shown]) => [
      h("h2", {}, `${title} (${list.total})`),
      h(
        "ul",
        { class: "found" },
        list.items.map((each) => {
          const [href, text, more] = shown(each);
          return h("li", {}, entry(href, text), more ? h("span", { class: "quiet" }, " ", name(more)) : null);
        }),
      ),
    ]),
  ];
}
