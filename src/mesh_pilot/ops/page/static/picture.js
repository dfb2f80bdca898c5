// Pictures of boxes and lines, in columns from left to right; the same boxes and lines always have the same places, so
// that a picture stays as it is while its numbers change.

import { html } from "./lib.js";

/** Columns of a picture: longer ways share them. */
const MOST_COLUMNS = 7;

const SWEEPS = 4;
const BEND = 120;

/** Gives each of `boxes` (`{id, name, width, height}`) its `x` and `y`, by the `lines` (`{start, end}`) between them: a
 * column for each step from where the lines come from, and in a column near to those that lead to it. Boxes without a
 * line stand beneath, in rows of three. */
export function layOut(boxes, lines, gap = { x: 120, y: 14 }) {
  const joined = new Set(lines.flatMap(({ start, end }) => [start, end]));
  const columns = columnsOf([...joined].sort(byId), lines);
  const neighbours = order(columns, lines);
  const step = { x: Math.max(0, ...boxes.map((each) => each.width)) + gap.x, y: gap.y };
  columns.forEach((column, at) => {
    let y = 0;
    for (const box of column) {
      const placed = neighbours.get(box).from.filter((each) => each.y !== undefined);
      const wanted = placed.length ? mean(placed.map(middle)) - box.height / 2 : 0;
      box.x = at * step.x;
      box.y = Math.max(y, wanted);
      y = box.y + box.height + gap.y;
    }
  });
  const bottom = Math.max(0, ...[...joined].map((each) => each.y + each.height + 2 * gap.y));
  placeBelow(boxes.filter((each) => !joined.has(each)), bottom, step);
}

const byId = (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
const middle = (box) => box.y + box.height / 2;
const mean = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;

/** Boxes by the length of the longest way to them. Of a circle, the line that closes it does not count. */
function columnsOf(boxes, lines) {
  const next = new Map(boxes.map((box) => [box, []]));
  const surplus = new Map(boxes.map((box) => [box, 0]));
  for (const { start, end } of lines) {
    next.get(start).push(end);
    surplus.set(start, surplus.get(start) - 1);
    surplus.set(end, surplus.get(end) + 1);
  }
  for (const ends of next.values()) ends.sort(byId);
  const left = [];
  const seen = new Set();
  const visit = (box) => {
    seen.add(box);
    for (const end of next.get(box)) if (!seen.has(end)) visit(end);
    left.unshift(box);
  };
  const led = new Set(lines.map(({ end }) => end));
  for (const box of [...boxes].sort((a, b) => led.has(a) - led.has(b) || surplus.get(a) - surplus.get(b))) if (!seen.has(box)) visit(box);
  const at = new Map(left.map((box, index) => [box, index]));
  const depths = new Map(left.map((box) => [box, 0]));
  for (const box of left) for (const end of next.get(box)) if (at.get(end) > at.get(box)) depths.set(end, Math.max(depths.get(end), depths.get(box) + 1));
  const share = Math.min(1, MOST_COLUMNS / (1 + Math.max(0, ...depths.values())));
  const columns = [];
  for (const box of boxes) (columns[Math.floor(depths.get(box) * share)] ??= []).push(box);
  return columns.filter(Boolean);
}

/** Brings each box of a column near to its neighbours in the others, so that fewer lines cross. */
function order(columns, lines) {
  const neighbours = new Map(columns.flat().map((box) => [box, { from: [], to: [] }]));
  for (const { start, end } of lines) {
    neighbours.get(start).to.push(end);
    neighbours.get(end).from.push(start);
  }
  const rank = new Map(columns.flatMap((column) => column.map((box, index) => [box, index / column.length])));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const [side, turned] = sweep % 2 ? ["to", [...columns].reverse()] : ["from", columns];
    for (const column of turned) {
      const wanted = new Map(column.map((box) => [box, neighbours.get(box)[side].length ? mean(neighbours.get(box)[side].map((each) => rank.get(each))) : rank.get(box)]));
      column.sort((a, b) => wanted.get(a) - wanted.get(b) || byId(a, b));
      column.forEach((box, index) => rank.set(box, index / column.length));
    }
  }
  return neighbours;
}

function placeBelow(boxes, top, step) {
  let y = top;
  for (let at = 0; at < boxes.length; at += 3) {
    const row = boxes.slice(at, at + 3);
    row.forEach((box, index) => Object.assign(box, { x: index * step.x, y }));
    y += Math.max(...row.map((each) => each.height)) + step.y;
  }
}

/** A drawing as large as its boxes. */
export function Drawing({ boxes, label, children }) {
  const width = Math.max(...boxes.map((each) => each.x + each.width)) + 4;
  const height = Math.max(...boxes.map((each) => each.y + each.height)) + 4;
  return html`<svg viewBox=${`-2 -2 ${width} ${height}`} width=${width} height=${height} role="group" aria-label=${label}>${children}</svg>`;
}

/** A line with its tip, from the right side of one box to the left side of another. */
export function Curve({ from: [x1, y1], to: [x2, y2], width }) {
  const bend = Math.min(BEND, Math.max(40, Math.abs(x2 - x1) / 2));
  return html`<path d=${`M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 5} ${y2}`} stroke-width=${width} />
    <path class="tip" d=${`M${x2 - 7} ${y2 - 4.5} L${x2} ${y2} L${x2 - 7} ${y2 + 4.5} Z`} />`;
}
