// The picture of calls: boxes of services, or of namespaces, with a line for what one calls of another. A line's width is
// the rate, its colour tells of failures, and its text says both.

import { endHref, endName } from "./callends.js";
import { html, toQuery } from "./lib.js";
import { Curve, Drawing, layOut } from "./picture.js";
import { callWords, severityOf } from "./rates.js";
import { counted, plain } from "./text.js";

const BOX = { width: 178, height: 46 };
const GAP = { x: 156, y: 14 };
const MOST_LETTERS = 24;
const MOST_UNDER = 29;

/** Room for lines that join boxes of the last column, with their words. */
const RIGHT = 90;

/** The height that the end of a line takes of a box: where it arrives it has words. */
const ENDS = { arrives: 17, leaves: 6 };

/** Lines of a picture: more of them would be none. */
const MOST_LINES = 150;

const MOODS = { ok: "", warning: "warn", error: "bad" };

/** `rows`: edges of the API. `expanded`: the namespaces of which the services are shown; null: of all. `table`: the id
 * of what says the same. */
export function CallsPicture({ rows, expanded, namespace = "", table = "calls-table" }) {
  const { boxes, lines, isAll } = drawn(rows, expanded, namespace);
  const skip = (event) => {
    event.preventDefault();
    document.querySelector(`#${table} a`)?.focus();
  };
  const last = Math.max(...boxes.map((each) => each.x));
  const isJoined = lines.some(({ start, end }) => start.x === last && end.x === last);
  return html`<section class="part graph calls" role="region" tabindex="0" aria-label="Picture">
    <a class="skip" href=${`#${table}`} onClick=${skip}>Skip the picture: the table says the same</a>
    <${Drawing} boxes=${boxes} right=${isJoined ? RIGHT : 0} label=${`${counted(boxes.length, "box", "boxes")}, ${counted(lines.length, "line")}`}>
      ${lines.map((line) => html`<${Line} key=${line.key} of=${line} />`)}
      ${boxes.map((box) => html`<${Box} key=${box.id} of=${box} />`)}
    <//>
    <p class="quiet">
      A line's width is the rate. Amber: one call in 200 fails; red: one in 20, or more than ten minutes ago.
      ${lines.some(({ sum }) => sum.is_routed === false) ? " A dashed line: no VirtualService has the host." : ""}
      ${isAll ? "" : ` These are the ${MOST_LINES} busiest; a filter shows others.`}
    </p>
  </section>`;
}

/** Boxes with their places, and lines between them. Calls of a box to itself are said within it. */
function drawn(rows, expanded, namespace) {
  const boxOf = boxesOf(rows, expanded);
  const all = new Map();
  for (const row of rows) {
    const [start, end] = [boxOf(row.caller), boxOf(row.called)];
    const key = `${start.id} ${end.id}`;
    if (!all.has(key)) all.set(key, { key, start, end, rows: [] });
    all.get(key).rows.push(row);
  }
  const lines = [...all.values()].map((line) => ({ ...line, sum: summed(line.rows) }));
  lines.sort((a, b) => weight(b.sum) - weight(a.sum) || (a.key < b.key ? -1 : 1));
  const shown = lines.slice(0, MOST_LINES);
  const boxes = [...new Set(shown.flatMap(({ start, end }) => [start, end]))];
  const first = ({ name }) => name.split(".")[0];
  for (const box of boxes) {
    const isOnly = !boxes.some((each) => each !== box && first(each) === first(box));
    Object.assign(box, { own: null, arriving: [], denied: null, text: box.kind === "service" && isOnly ? first(box) : endName(box) });
  }
  for (const line of shown) {
    const { start, end } = line;
    if (start === end) start.own = line.sum;
    else end.arriving.push(...line.rows);
    const denied = line.rows.map((each) => each.denied ?? 0);
    if (end.kind === "service") end.denied = Math.max(end.denied ?? 0, ...denied);
  }
  const between = shown.filter(({ start, end }) => start !== end);
  for (const box of boxes) Object.assign(box, { width: BOX.width, height: BOX.height });
  layOut(boxes, between, { gap: GAP, most: expanded?.length === 0 ? 4 : 6, resize: () => attach(boxes, between) });
  for (const box of boxes) {
    for (const side of [1, -1]) {
      const ends = box.ends.filter((each) => each.side === side);
      ends.sort((a, b) => a.other.y - b.other.y || a.other.x - b.other.x);
      const all = ends.reduce((sum, each) => sum + each.room, 0);
      let y = box.y + (box.height - all) / 2;
      for (const own of ends) {
        own.x = side === 1 ? box.x + box.width : box.x;
        own.y = y + own.room / 2;
        y += own.room;
      }
    }
  }
  for (const line of between) line.href = lineHref(line, namespace);
  // The order in which the keyboard reaches them.
  boxes.sort((a, b) => a.x - b.x || a.y - b.y);
  between.sort((a, b) => a.from.x - b.from.x || a.from.y - b.from.y || a.to.y - b.to.y);
  return { boxes, lines: between, isAll: shown.length === lines.length };
}

/** Gives lines their ends: on the sides that look at each other; two boxes of one column are joined on the right. */
function attach(boxes, lines) {
  for (const box of boxes) box.ends = [];
  for (const line of lines) {
    const { start, end } = line;
    line.from = { side: end.x < start.x ? -1 : 1, other: end, room: ENDS.leaves };
    line.to = { side: end.x > start.x ? -1 : 1, other: start, room: ENDS.arrives };
    start.ends.push(line.from);
    end.ends.push(line.to);
  }
  for (const box of boxes) {
    const rooms = [1, -1].map((side) => box.ends.reduce((sum, each) => sum + (each.side === side ? each.room : 0), 12));
    box.height = Math.max(BOX.height, ...rooms);
  }
}

/** Of what fails before what does not; then by rate, roughly, so that no line comes and goes. */
function weight(sum) {
  return 100 * ["ok", "warning", "error"].indexOf(severityOf(sum)) + Math.round(Math.log2(sum.per_second + 0.001));
}

/** `boxOf(end)`: the box of an end. A workload is the box of the service of its name in its namespace, if there is one. */
function boxesOf(rows, expanded) {
  const boxes = new Map();
  const hosts = new Map();
  for (const { called } of rows) {
    if (called.kind !== "service") continue;
    const key = `${called.namespace}/${called.name.split(".")[0]}`;
    hosts.set(key, new Set([...(hosts.get(key) ?? []), called.name]));
  }
  return (end) => {
    let own = end;
    const key = `${end.namespace}/${end.name}`;
    if (end.namespace && expanded && !expanded.includes(end.namespace)) own = { kind: "namespace", namespace: end.namespace, name: end.namespace };
    else if (["workload", "gateway"].includes(end.kind) && hosts.get(key)?.size === 1) own = { kind: "service", namespace: end.namespace, name: [...hosts.get(key)][0] };
    const id = `${own.kind} ${own.namespace}/${own.name}`;
    if (!boxes.has(id)) boxes.set(id, { id, kind: own.kind, namespace: own.namespace, name: own.name });
    return boxes.get(id);
  };
}

/** The sum of edges, of each unit. */
function summed(rows) {
  const units = new Map();
  for (const { unit, per_second } of rows) units.set(unit, (units.get(unit) ?? 0) + per_second);
  const known = rows.filter((each) => each.rate !== null);
  const tries = known.reduce((sum, each) => sum + each.tries, 0);
  const failures = known.reduce((sum, each) => sum + each.failures, 0);
  return {
    per_second: rows.reduce((sum, each) => sum + each.per_second, 0),
    words: [...units].map(([unit, per_second], at) => callWords({ unit, per_second, rate: at === units.size - 1 && tries ? failures / tries : 0 })).join(" + "),
    rate: tries ? failures / tries : null,
    is_worse: rows.some((each) => each.is_worse),
    is_routed: rows.every((each) => each.is_routed === false) ? false : null,
  };
}

function lineHref({ start, end }, namespace) {
  const [one, other] = [start, end].map((each) => each.namespace);
  if (end.kind === "service") return endHref(end);
  if (end.kind !== "namespace") return toQuery(["traffic"], { namespace: one, q: end.name });
  if (!other) return toQuery(["traffic"], { namespace: one });
  return toQuery(["traffic"], one === other ? { namespace: one } : namespace === other ? { namespace, with: one } : { namespace: one, with: other });
}

function Line({ of: { start, end, sum, href, from, to } }) {
  const words = `${sum.words}${sum.is_worse ? ", worse" : ""}`;
  const label = `${plain(endName(start))} calls ${plain(endName(end))}: ${words}${sum.is_routed === false ? ", no VirtualService" : ""}`;
  const mood = MOODS[severityOf(sum)];
  return html`<a href=${href} aria-label=${label}><g class=${`line ${mood} ${sum.is_routed === false ? "some" : ""}`}>
    <${Curve} from=${from} to=${to} width=${Math.min(8, 1 + 1.7 * Math.log10(1 + sum.per_second))} />
    <text x=${to.x + 12 * to.side} y=${to.y - 4} text-anchor=${to.side < 0 ? "end" : null}>${words.length > 25 ? `${words.slice(0, 24)}…` : words}</text>
    <title>${label}</title>
  </g></a>`;
}

function Box({ of }) {
  const href = endHref(of);
  const shown = plain(of.text);
  const under = underOf(of);
  const mood = of.denied || of.own?.is_worse ? "bad" : "";
  const drawing = html`<g class=${`box ${of.kind} ${mood}`} transform=${`translate(${of.x} ${of.y})`}>
    <rect width=${of.width} height=${of.height} rx="6" />
    <text x="10" y="19" direction="ltr" unicode-bidi="isolate">${shown.length > MOST_LETTERS ? `${shown.slice(0, MOST_LETTERS - 1)}…` : shown}</text>
    <text class="under" x="10" y="36">${under.length > MOST_UNDER ? `${under.slice(0, MOST_UNDER - 1)}…` : under}</text>
    <title>${`${plain(endName(of)).slice(0, 300)}: ${under}`}</title>
  </g>`;
  return href ? html`<a href=${href}>${drawing}</a>` : drawing;
}

const WORDS = { namespace: "namespace", service: "service", gateway: "gateway", workload: "workload", passthrough: "no service has the host", black_hole: "refused: no service" };

/** The second line of a box: what policies deny there, calls within it, calls that arrive, else what it is. */
function underOf({ kind, own, arriving, denied }) {
  if (denied) return `policy denies ${counted(denied, "call")}`;
  if (own) return `${own.is_worse ? "worse" : "within"}: ${own.words}`;
  return kind === "service" && arriving.length ? summed(arriving).words : (WORDS[kind] ?? kind);
}
