// Pictures of boxes and lines, in columns from left to right; the same boxes and lines always have the same places, so
// that a picture stays as it is while its numbers change.

import { html } from "./lib.js";

const SWEEPS = 4;
const BEND = 120;

/** Gives each of `boxes` (`{id, name, width, height}`) its `x` and `y`, by the `lines` (`{start, end}`) between them: a
 * column for each step from where the lines come from, and in a column near to those that lead to it. Boxes without a
 * line stand beneath, in rows of three. `most`: columns; longer ways share them. `resize()` may change heights, when each
 * box has its `x`. */
export function layOut(boxes, lines, { gap = { x: 120, y: 14 }, most = 7, resize = () => {} } = {}) {
  const joined = new Set(lines.flatMap(({ start, end }) => [start, end]));
  const columns = columnsOf([...joined].sort(byId), lines, most);
  const neighbours = order(columns, lines);
  const step = { x: Math.max(0, ...boxes.map((each) => each.width)) + gap.x, y: gap.y };
  columns.forEach((column, at) => column.forEach((box) => (box.x = at * step.x)));
  resize();
  for (const column of columns) {
    let y = 0;
    for (const box of column) {
      const placed = neighbours.get(box).from.filter((each) => each.y !== undefined);
      const wanted = placed.length ? mean(placed.map(middle)) - box.height / 2 : 0;
      box.y = Math.max(y, wanted);
      y = box.y + box.height + gap.y;
    }
  }
  const bottom = Math.max(0, ...[...joined].map((each) => each.y + each.height + 2 * gap.y));
  placeBelow(boxes.filter((each) => !joined.has(each)), bottom, step);
}

const byId = (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
const middle = (box) => box.y + box.height / 2;
const mean = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;

/** Boxes by the length of the longest way to them. Of a circle, the line that closes it does not count. */
function columnsOf(boxes, lines, most) {
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
  const share = Math.min(1, most / (1 + Math.max(0, ...depths.values())));
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

/** A drawing as large as its boxes, with some room to the right of them. */
export function Drawing({ boxes, label, right = 0, children }) {
  const width = Math.max(...boxes.map((each) => each.x + each.width)) + 4 + right;
  const height = Math.max(...boxes.map((each) => each.y + each.height)) + 4;
  return html`<svg viewBox=${`-2 -2 ${width} ${height}`} width=${width} height=${height} role="group" aria-label=${label}>${children}</svg>`;
}

/** A line with its tip. Ends: `{x, y, side}`, of which the side is that of the box: 1 for its right, -1 for its left. */
export function Curve({ from, to, width }) {
  const bend = Math.min(BEND, Math.max(40, Math.abs(to.x - from.x) / 2));
  const tip = to.x + 7 * to.side;
  return html`<path d=${`M${from.x} ${from.y} C${from.x + bend * from.side} ${from.y} ${to.x + bend * to.side} ${to.y} ${to.x + 5 * to.side} ${to.y}`} stroke-width=${width} />
    <path class="tip" d=${`M${tip} ${to.y - 4.5} L${to.x} ${to.y} L${tip} ${to.y + 4.5} Z`} />`;
}
