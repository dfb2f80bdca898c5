// The routes of a host or of a gateway's server as a tree: VirtualServices, rules, and destinations with their shares.
// Nested lists, so that it reads as a tree without a picture, too.

import { Badge, Link, Name, ObjectLink, Place, Some, State } from "./components.js";
import { html, to } from "./lib.js";

/** The VirtualServices of an answer, each a tree. `withHosts`: with the hosts that each is for. */
export function Trees({ trees, more = 0, withHosts = false }) {
  return html`${trees.map((each) => html`<${Tree} key=${each.object} of=${each} withHosts=${withHosts} />`)}
    ${more ? html`<p class="quiet">and ${more} more VirtualServices</p>` : null}`;
}

function Tree({ of, withHosts }) {
  const rules = [...of.http, ...of.tls.map(kind("TLS")), ...of.tcp.map(kind("TCP"))];
  return html`<ul class="tree">
    <li>
      ${withHosts ? html`<b><${Some} list=${of.hosts} most=${3} /></b>${" by "}` : null}<${ObjectLink} text=${of.object} />
      ${of.severity && of.severity !== "ok" ? html`${" "}<${State} of=${of} />` : null} <${Place} where=${of.origin} />
      ${withHosts ? null : html`<span class="quiet">${" at "}<${Some} list=${of.gateways} /></span>`}
      <ul>
        ${rules.length ? rules.map((rule, index) => html`<${Rule} key=${index} of=${rule} number=${index + 1} />`) : html`<li class="quiet">It has no rule.</li>`}
      </ul>
    </li>
  </ul>`;
}

function kind(protocol) {
  return (each) => ({ ...each, protocol });
}

function Rule({ of, number }) {
  const any = of.protocol ? `any ${of.protocol} connection` : "any request";
  return html`<li>
    <span class="quiet">${number}.</span>${" "}
    ${of.match.length
      ? of.match.map((match, at) => html`${at ? html`<span class="quiet">${" or "}</span>` : null}<span class="match"><${Name} text=${match} /></span>`)
      : html`<span class="match">${any}</span>`}
    ${of.name ? html`<span class="quiet">${" "}<${Name} text=${of.name} /></span>` : null}
    ${of.actions.map((action) => html`${" "}<${Badge} text=${action} />`)}
    <ul>
      ${of.to.map((each) => html`<${Destination} key=${`${each.host} ${each.subset} ${each.port}`} of=${each} />`)}
      ${!of.to.length && !of.actions.length ? html`<li class="bad">nowhere</li>` : null}
    </ul>
  </li>`;
}

/** A destination with its share, and what is wrong with it. */
export function Destination({ of }) {
  const percent = Math.round(of.share * 1000) / 10;
  const shown = `${of.host}${of.port ? `:${of.port}` : ""}`;
  const isIll = of.problem || (of.endpoints > 0 && !of.healthy);
  return html`<li class=${isIll ? "bad" : null}>
    ${of.share < 1 ? html`<meter min="0" max="1" value=${of.share} aria-hidden="true"></meter><span class="share">${percent} %</span>${" "}` : html`<span class="quiet" aria-hidden="true">→ </span>`}
    ${of.namespace ? html`<${Link} href=${to("services", of.namespace, of.host)} text=${shown} />` : html`<${Name} text=${shown} />`}
    ${of.subset ? html`${" "}<${Badge} text=${of.subset} />` : null}
    ${of.problem
      ? html`<span>${" "}<${Name} text=${of.problem} /></span>`
      : html`<span class=${isIll ? null : "quiet"}>${` ${of.healthy} of ${of.endpoints} healthy`}</span>`}
  </li>`;
}
