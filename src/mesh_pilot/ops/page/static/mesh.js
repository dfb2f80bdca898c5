// The picture of the mesh: from gateways and Sidecars to hosts and services, with the shares of subsets; and as a table.

import { get } from "./api.js";
import { Badge, Chips, Filter, Link, Name, ObjectLink, Part, Table, objectHref } from "./components.js";
import { html, to } from "./lib.js";
import { Curve, Drawing, layOut } from "./picture.js";
import { counted, number, plain } from "./text.js";

const LISTED = ["mesh"];

export const views = [{ at: "mesh", place: "traffic", title: "Mesh", load: loadMesh, show: Mesh }];

function loadMesh(parts, query, signal) {
  return get(["graph"], { q: query.q, namespace: query.namespace }, signal);
}

function Mesh({ data, query }) {
  const { edges, total } = data;
  const isFiltered = query.q || query.namespace;
  return html`
    <h1>Mesh: who routes to whom</h1>
    <div class="toolbar">
      <${Filter} parts=${LISTED} query=${query} label="names" />
      <${Chips} parts=${LISTED} query=${query} names=${["namespace"]} />
      <p class="pager" role="status">${edges.length < total ? `${number(edges.length)} of ${counted(total, "route")}: filter to see others` : total ? counted(total, "route") : ""}</p>
    </div>
    ${edges.length
      ? html`<section class="part graph" tabindex="0" role="region" aria-label="Picture"><${Picture} edges=${edges} />
          <p class="quiet">A bar is the share of a subset; a dashed line is for requests that fulfil conditions.</p></section>`
      : html`<section class="part"><p>${isFiltered ? "The filter lets no route through." : "No VirtualService, Gateway or Sidecar names a host: each request goes to the service that it names."}</p></section>`}
    ${edges.length ? html`<${Part} title="As a table"><${AsTable} edges=${edges} /><//>` : null}
  `;
}

const KINDS = { gateway: "gateway", sidecar: "Sidecar", service: "service", host: "host", unknown: "does not exist" };

function AsTable({ edges }) {
  return html`<${Table}
    label="Routes"
    rows=${edges}
    keyed=${(each) => `${id(each.from)} ${id(each.to)} ${each.subset}`}
    columns=${[
      { head: "from", cell: (each) => html`<${End} of=${each.from} />` },
      { head: "to", cell: (each) => (id(each.from) === id(each.to) ? html`<span class="quiet">itself</span>` : html`<${End} of=${each.to} />`) },
      { head: "subset", cell: (each) => (each.subset ? html`<${Badge} text=${each.subset} />` : null) },
      { head: "share", isNumber: true, cell: (each) => html`${percent(each.share)}${each.is_conditional ? html`<span class="quiet"> of some</span>` : null}` },
      { head: "by", cell: (each) => html`<${ObjectLink} text=${each.object} />` },
    ]}
  />`;
}

function End({ of }) {
  const target = href(of);
  return html`<span>${target ? html`<${Link} href=${target} text=${of.name} />` : html`<${Name} text=${of.name} />`}${" "}<span class=${of.kind === "unknown" ? "bad" : "quiet"}>${KINDS[of.kind] ?? of.kind}</span></span>`;
}

function id(end) {
  return `${end.kind} ${end.name}`;
}

function href(end) {
  if (end.namespace) return to("services", end.namespace, end.name);
  if (end.kind === "gateway" && end.name.includes("/")) return to("gateways", ...end.name.split("/"));
  return end.kind === "sidecar" ? objectHref(`Sidecar/${end.name}`) : null;
}

function percent(share) {
  return `${Math.round(share * 1000) / 10} %`;
}

/** `v1 90 %`; of a route that has conditions, `v2, with conditions`. */
function shareWords(edge) {
  const share = edge.is_conditional ? "with conditions" : percent(edge.share);
  return edge.subset ? `${plain(edge.subset)}${edge.is_conditional ? ", " : " "}${share}` : share;
}

// -- the picture

const BOX = { width: 252, height: 30, line: 20 };
const MOST_LETTERS = 34;

/** Boxes with their places, and lines between them. A route of a service to itself is a line within its box. */
function laidOut(edges) {
  const boxes = new Map();
  const box = (end) => {
    if (!boxes.has(id(end))) boxes.set(id(end), { ...end, id: id(end), own: [] });
    return boxes.get(id(end));
  };
  const lines = new Map();
  for (const edge of edges) {
    const [start, end] = [box(edge.from), box(edge.to)];
    const key = `${start.id} ${end.id}`;
    if (start === end) {
      if (edge.subset || edge.share < 1) start.own.push(edge);
    } else if (lines.has(key)) lines.get(key).edges.push(edge);
    else lines.set(key, { key, start, end, edges: [edge] });
  }
  for (const own of boxes.values()) Object.assign(own, { width: BOX.width, height: BOX.height + own.own.length * BOX.line });
  const found = { boxes: [...boxes.values()], lines: [...lines.values()] };
  layOut(found.boxes, found.lines);
  return found;
}

function Picture({ edges }) {
  const { boxes, lines } = laidOut(edges);
  return html`<${Drawing} boxes=${boxes} label=${`${counted(boxes.length, "end")}, ${counted(edges.length, "route")}`}>
    ${lines.map((line) => html`<${Line} key=${line.key} of=${line} />`)}
    ${boxes.map((box) => html`<${Box} key=${box.id} of=${box} />`)}
  <//>`;
}

function Line({ of }) {
  const { start, end, edges } = of;
  const [x2, y2] = [end.x, end.y + BOX.height / 2];
  const share = Math.max(...edges.map((each) => each.share));
  const text = edges
    .filter((each) => each.subset || each.share < 1)
    .map(shareWords)
    .join(", ");
  return html`<g class=${`line ${[start.kind, end.kind].includes("unknown") ? "unknown" : ""} ${edges.every((each) => each.is_conditional) ? "some" : ""}`}>
    <${Curve} from=${{ x: start.x + BOX.width, y: start.y + BOX.height / 2, side: 1 }} to=${{ x: x2, y: y2, side: -1 }} width=${1 + 2.5 * share} />
    ${text ? html`<text x=${x2 - 12} y=${y2 - 6} text-anchor="end">${text.length > 24 ? `${text.slice(0, 23)}…` : text}<title>${text}</title></text>` : null}
  </g>`;
}

function Box({ of }) {
  const target = href(of);
  const shown = plain(of.name);
  const label = shown.length > MOST_LETTERS ? `${shown.slice(0, MOST_LETTERS - 1)}…` : shown;
  const drawn = html`<g class=${`box ${of.kind}`} transform=${`translate(${of.x} ${of.y})`}>
    <rect width=${BOX.width} height=${of.height} rx="6" />
    <text x="10" y="19" direction="ltr" unicode-bidi="isolate">${label}</text>
    ${of.own.map(
      (edge, index) => html`<g key=${edge.subset} transform=${`translate(10 ${BOX.height + index * BOX.line - 4})`}>
        <rect class="bar" width=${Math.max(2, 90 * edge.share)} height="8" y="4" rx="2" />
        <text class="share" x="98" y="12">${shareWords(edge).slice(0, 24)}</text>
      </g>`,
    )}
    <title>${`${KINDS[of.kind] ?? of.kind} ${shown.slice(0, 300)}`}</title>
  </g>`;
  return target ? html`<a href=${target}>${drawn}</a>` : drawn;
}
