// The picture of the mesh: three columns (where requests enter, the hosts they ask for, where they go), and as a table.

import { get } from "./api.js";
import { h, link, name, svg, to } from "./dom.js";
import { filter, objectHref, objectLink, table } from "./parts.js";

const ROW = 34;
const BOX = { width: 260, height: 24 };
const GAP = 130;
const SHOWN = 60;

/** Column of an end by its kind. */
const COLUMN = { gateway: 0, sidecar: 0, host: 1, service: 2 };

export async function mesh(parts, query, signal) {
  const found = await get(["graph"], { q: query.q, namespace: query.namespace }, signal);
  const edges = found.edges.slice(0, SHOWN);
  return [
    h("h1", {}, "Mesh: who routes to whom"),
    filter(["mesh"], query, "names"),
    h(
      "p",
      { class: "quiet", role: "status" },
      found.total ? `${edges.length} of ${found.total} edges are drawn` : "No VirtualService, gateway or Sidecar names a host.",
      found.total > edges.length ? "; filter to see others" : "",
    ),
    edges.length ? h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Picture" }, picture(edges)) : null,
    h("h2", {}, "As a table"),
    table(
      "Edges",
      ["from", "", "to", "share", "by"],
      found.edges.map((each) => [
        [h("span", { class: "quiet" }, each.from.kind, " "), end(each.from)],
        "→",
        end(each.to),
        percent(each.share),
        objectLink(each.object),
      ]),
    ),
  ];
}

function href(each) {
  if (each.namespace) return to("services", each.namespace, each.name);
  if (each.kind === "gateway") return objectHref(`Gateway/${each.name}`);
  return each.kind === "sidecar" ? objectHref(`Sidecar/${each.name}`) : null;
}

function end(each) {
  const target = href(each);
  return target ? link(target, each.name) : name(each.name);
}

function percent(share) {
  return share >= 1 ? "" : `${Math.round(share * 1000) / 10} %`;
}

function picture(edges) {
  const nodes = new Map();
  const rows = [0, 0, 0];
  const node = (each) => {
    const id = `${each.kind} ${each.name}`;
    if (!nodes.has(id)) {
      const column = COLUMN[each.kind] ?? 1;
      nodes.set(id, { ...each, x: 10 + column * (BOX.width + GAP), y: 10 + rows[column]++ * ROW });
    }
    return nodes.get(id);
  };
  const drawn = edges.map((edge) => ({ ...edge, from: node(edge.from), to: node(edge.to) }));
  const width = 20 + 3 * BOX.width + 2 * GAP;
  const height = 20 + Math.max(...rows) * ROW;
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${nodes.size} ends, ${edges.length} edges` },
    drawn.map(line),
    [...nodes.values()].map(box),
  );
}

function line({ from, to: target, share }) {
  const [x1, y1] = [from.x + BOX.width, from.y + BOX.height / 2];
  const [x2, y2] = [target.x, target.y + BOX.height / 2];
  const bend = GAP / 2;
  const path = svg("path", {
    d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
    class: "edge",
    "stroke-width": String(1 + 4 * share),
  });
  const text = percent(share);
  if (!text) return path;
  return svg("g", {}, path, svg("text", { x: x2 - 8, y: y2 - 4, "text-anchor": "end", class: "weight" }, text));
}

function box(each) {
  const target = href(each);
  const cut = each.name.length > 36 ? each.name.slice(0, 35) + "…" : each.name;
  const drawn = svg(
    "g",
    { transform: `translate(${each.x} ${each.y})`, class: `box ${each.kind}${each.kind === "service" && !each.namespace ? " unknown" : ""}` },
    svg("rect", { width: BOX.width, height: BOX.height, rx: 4 }),
    svg("text", { x: 8, y: 16, direction: "ltr", "unicode-bidi": "isolate" }, cut),
    svg("title", {}, `${each.kind} ${each.name.slice(0, 300)}`),
  );
  return target ? svg("a", { href: target }, drawn) : drawn;
}
