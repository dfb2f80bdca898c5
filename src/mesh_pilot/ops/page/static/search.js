// Search: services, objects and proxies by name, host, address and label.

import { get } from "./api.js";
import { Link, Name, Part } from "./components.js";
import { html, to } from "./lib.js";
import { number } from "./text.js";

export const views = [{ at: "search", place: "ask", title: "Search", load: loadSearch, show: Search }];

async function loadSearch(parts, query, signal) {
  return query.q?.trim() ? get(["search"], { q: query.q }, signal) : {};
}

function Search({ data, query }) {
  if (!data.services) {
    return html`<h1>Search</h1>
      <section class="part">
        <p>Type above: a part of a name or a host, an address, or a label such as <code>app=cart</code>. Of several words, all have to be there.</p>
      </section>`;
  }
  const groups = [
    ["Services", data.services, ([namespace, host]) => [to("services", namespace, host), host, namespace]],
    ["Objects", data.objects, ([kind, namespace, own]) => [to("objects", kind, namespace, own), own, `${kind} in ${namespace}`]],
    ["Proxies", data.proxies, ([own]) => [to("proxies", own), own, ""]],
  ].filter(([, list]) => list.total);
  return html`
    <h1>Search: <${Name} text=${query.q} most=${120} /></h1>
    ${groups.length
      ? null
      : html`<section class="part"><p role="status">No service, object or proxy has this in its name, hosts, addresses or labels.</p></section>`}
    <div class="beside">
      ${groups.map(
        ([title, list, shown]) => html`<${Part} key=${title} title=${html`${title} <span class="quiet">${number(list.total)}</span>`}>
          <ul class="plainlist found">
            ${list.items.map((each, index) => {
              const [href, text, more] = shown(each);
              const match = list.matches?.[index];
              return html`<li key=${href}>
                <${Link} href=${href} text=${text} entry />${more || match ? html`<span class="quiet">${" "}<${Name} text=${[more, match].filter(Boolean).join(", ")} /></span>` : null}
              </li>`;
            })}
          </ul>
          ${list.total > list.items.length ? html`<p class="quiet">The best ${number(list.items.length)} of ${number(list.total)}: another word narrows them.</p>` : null}
        <//>`,
      )}
    </div>
  `;
}
