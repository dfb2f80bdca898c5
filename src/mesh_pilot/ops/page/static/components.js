// Components that all views are made of: names, times, verdicts, tables, filters, pagers, commands.

import { clock, exact, bytes, duration, number, pieces, plain } from "./text.js";
import { html, to, toQuery, useEffect, useMemo, useRef, useState } from "./lib.js";
import { get } from "./api.js";
import { now, planeTime, turns } from "./live.js";

export const PAGE = 100;

// -- names

/** A name or a sentence as text: in its own direction, cut where it is long (all of it in a tooltip), with escapes
 * for what cannot be seen. A line may end at its dots and slashes, where it must end. */
export function Name({ text, most = 300 }) {
  // The same element again is not compared again: most names of a view stay as they are at each refresh.
  return useMemo(() => written(String(text ?? ""), most), [text, most]);
}

function written(all, most) {
  const isCut = all.length > most;
  const shown = pieces(isCut ? all.slice(0, most) : all);
  const more = isCut ? { title: plain(all.slice(0, 2000)) } : null;
  return html`<bdi class=${all.includes(" ") ? null : "whole"} ...${more}
    >${shown.map(([piece, isEscape]) => (isEscape ? html`<span class="escape">${piece}</span>` : breakable(piece)))}${isCut ? "…" : ""}</bdi
  >`;
}

function breakable(text) {
  if (text.length < 28) return text;
  return text.split(" ").map((word, index) => [
    index ? " " : "",
    word.length < 28 ? word : word.split(/(?<=[/|,=~])|(?=\.(?=.))/).map((part, at) => (at ? [html`<wbr />`, part] : part)),
  ]);
}

/** A link to a view with a name as its text. `entry`: the arrow keys reach it. */
export function Link({ href, text, entry = false, most = 300, ...more }) {
  return html`<a href=${href} data-entry=${entry ? "" : null} ...${more}><${Name} text=${text} most=${most} /></a>`;
}

/** The address of an object's view, of `Kind/namespace/name`; null if the text is none. */
export function objectHref(text) {
  const parts = String(text).split("/");
  return parts.length === 3 && /^[A-Z]/.test(parts[0]) ? to("objects", ...parts) : null;
}

/** An object `Kind/namespace/name`, as a link to its view. */
export function ObjectLink({ text, ...more }) {
  const href = objectHref(text);
  return href ? html`<${Link} href=${href} text=${text} ...${more} />` : html`<${Name} text=${text} />`;
}

/** The first of several, and how many more; `shown`: how one looks. */
export function Some({ list = [], most = 5, total = undefined, shown = (each) => html`<${Name} text=${each} />` }) {
  const more = (total ?? list.length) - Math.min(most, list.length);
  const some = list.slice(0, most);
  return html`${some.map((each, index) => (index < some.length - 1 ? html`<span class="item">${shown(each)},</span> ` : shown(each)))}${more > 0 ? ` and ${number(more)} more` : ""}`;
}

/** A place such as `a.yaml:7`: the file's name, with all of the path in a tooltip. */
export function Place({ where }) {
  if (!where) return null;
  const short = String(where).split("/").slice(-2).join("/");
  return html`<span class="place" title=${plain(where)}><${Name} text=${short} most=${80} /></span>`;
}

/** An Envoy-like name, a version, a field: as it is written. */
export function Code({ text, most = 300 }) {
  return html`<code><${Name} text=${text} most=${most} /></code>`;
}

// -- times

/** How long ago, or in how long: `3 min ago`; exactly on hover. */
export function Time({ at, quiet = false }) {
  now.use();
  const time = Date.parse(at);
  if (!at || !Number.isFinite(time)) return null;
  return html`<time datetime=${at} title=${exact(new Date(time).toISOString())} class=${quiet ? "quiet" : null}>${relative(time)}</time>`;
}

function relative(time) {
  const seconds = Math.round((planeTime() - time) / 1000);
  if (Math.abs(seconds) < 5) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

/** For how long something has been so: `for 3 min`; since when exactly on hover. */
export function Since({ at }) {
  now.use();
  const time = Date.parse(at);
  if (!at || !Number.isFinite(time)) return null;
  const seconds = Math.max(1, Math.round((planeTime() - time) / 1000));
  return html`<time datetime=${at} title=${`since ${exact(new Date(time).toISOString())}`}>for ${duration(seconds)}</time>`;
}

/** A time of day, such as a heading or a row in a list by hour has. */
export function Clock({ at }) {
  const time = new Date(at);
  return html`<time datetime=${at} title=${exact(time.toISOString())}>${clock(time)}</time>`;
}

// -- verdicts

const MOODS = { ok: "good", warning: "warn", error: "bad", good: "good", warn: "warn", bad: "bad", quiet: "quiet" };

const MARKS = {
  good: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm3.6 5.2-4.2 4.9a.8.8 0 0 1-1.2 0L4.3 9a.8.8 0 1 1 1.2-1l1.3 1.4 3.6-4.2a.8.8 0 0 1 1.2 1Z",
  warn: "M8.9 1.6a1 1 0 0 0-1.8 0L.9 13.4A1 1 0 0 0 1.8 15h12.4a1 1 0 0 0 .9-1.6ZM8 5.2c.5 0 .8.4.8.8v3.5a.8.8 0 0 1-1.6 0V6c0-.4.3-.8.8-.8Zm0 6a1 1 0 1 1 0 2 1 1 0 0 1 0-2Z",
  bad: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm3 9-1 1-2-2-2 2-1-1 2-2-2-2 1-1 2 2 2-2 1 1-2 2Z",
  quiet: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm0 1.6a5.4 5.4 0 1 1 0 10.8A5.4 5.4 0 0 1 8 2.6Z",
};

/** The sign of a severity (`ok`, `warning`, `error`): its shape tells as much as its colour. */
export function Mark({ severity }) {
  const mood = MOODS[severity] ?? "quiet";
  return html`<svg class=${`mark ${mood}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d=${MARKS[mood]} /></svg>`;
}

/** A word with a severity; `sign`: with its sign before it. */
export function Badge({ text, severity, sign = false }) {
  return html`<span class=${`badge ${MOODS[severity] ?? ""}`}>${sign ? html`<${Mark} severity=${severity} />` : null}<${Name} text=${text} most=${80} /></span>`;
}

/** The badge of a row of the API: its `state`, coloured by its `severity`, with its `why` on hover. */
export function State({ of }) {
  const why = of.why ? { title: plain(of.why.slice(0, 1000)) } : null;
  return html`<span ...${why}><${Badge} text=${of.state} severity=${of.severity} sign=${of.severity !== "ok"} /></span>`;
}

/** What holds of one thing, at the top of its view: state, reason, since when, and the command that fixes it. */
export function Verdict({ of, fine = "", command = "", children }) {
  return html`<section class=${`verdict ${MOODS[of.severity] ?? "quiet"}`} aria-label="State">
    <p class="head">
      <${Mark} severity=${of.severity} /> <strong><${Word} text=${of.state} /></strong>
      ${of.since ? html`<span class="quiet">${" "}<${Since} at=${of.since} /></span>` : null}
    </p>
    ${of.why || fine ? html`<p class="why"><${Name} text=${of.why || fine} most=${2000} /></p>` : null} ${children}
    ${command ? html`<${Command} text=${command} />` : null}
  </section>`;
}

// -- words that a newcomer does not know

export const WORDS = {
  CDS: "Cluster discovery: the clusters, that is the destinations that a proxy knows, with their ports and policies.",
  EDS: "Endpoint discovery: the addresses behind each cluster, with their health.",
  LDS: "Listener discovery: the ports at which a proxy accepts connections, and what it does with them.",
  RDS: "Route discovery: which request goes to which cluster.",
  SDS: "Secret discovery: the certificates and keys of a proxy.",
  ECDS: "Extension discovery: filters such as modules of WebAssembly.",
  NDS: "Name discovery: the names that a proxy answers itself, by DNS.",
  VHDS: "Virtual host discovery: the routes of single hosts, as a proxy asks for them.",
  NACK: "A proxy's refusal of what it was sent; it continues with what it had.",
  ACK: "A proxy's word that it has accepted what it was sent.",
  revision: "The number of a state of the whole mesh. Each change of configuration or services makes the next one.",
  "in sync": "The proxy has accepted all that it was sent.",
  pending: "It was sent the newest version, or is about to be, and has not answered yet.",
  warming: "It has accepted the newest version and does not use it yet: it waits for something that belongs to it.",
  refused: "A proxy, or validation, does not accept the newest version; the one before is kept.",
  withheld: "Proxies have refused this object. They are served its last good version, or go without, until it changes.",
  held: "Its source has lost much at once. All of it is kept until somebody confirms the loss.",
  stale: "Its source does not answer. What it gave last is kept.",
  "in canary": "A rollout has given the newest version to some proxies only.",
  "taken back": "A rollout was ended: the proxies have the version before.",
  gone: "It is not connected any more; what it had last is still known.",
  trial: "A push without some objects, by which the control plane finds out which of them a proxy refuses.",
  faulty: "It is in force, and the analyzers find an error in it.",
  conflicting: "It is in force, and another object says something else about the same.",
  failing: "An internal error keeps something of it back; what was there before is kept.",
  degraded: "Some of its endpoints are not healthy.",
  blind: "Its source answers, and may not see what it should.",
  down: "It has endpoints, and none of them is healthy.",
  empty: "It has no endpoint at all, though it should.",
  success: "The share of requests that were not answered with a 5xx. Of a proxy with load reports alone: of attempts; of TCP: of connections that were made.",
  arrived: "What its own proxies counted: requests of everybody, each retry being one.",
  "from outside": "What arrived, less what callers in the mesh sent: requests of clients without a proxy that reports.",
  "in flight": "Requests without an answer yet, at the last report.",
  "worse after": "On one edge at least calls fail more often than before this revision, beyond chance. It is what happened after it, not always because of it.",
  "same after": "No edge is known to be worse, and those with half of the calls are known not to be.",
  "too little traffic after": "There were too few calls to know.",
  clients: "The connected proxies that can call the service: they have a cluster for it.",
  routes: "The VirtualServices that have the host.",
  mTLS: "Both sides of a connection show certificates of the mesh. Required: plaintext is refused. Accepted: so is plaintext. Off: all is plaintext.",
  quarantine: "Finds the object that proxies refuse, and serves them its last good version.",
};

/** A word that explains itself on hover, focus and touch, where it is one of `WORDS`; else plain text. */
export function Word({ text, word = text }) {
  if (!WORDS[word]) return html`<${Name} text=${text} most=${120} />`;
  return html`<button type="button" class="word" data-tip=${WORDS[word]}>${text}</button>`;
}

// -- commands

/** A command of the terminal, to copy. */
export function Command({ text }) {
  const [said, say] = useState("");
  async function copy() {
    say((await copied(text)) ? "copied" : "select it");
    setTimeout(() => say(""), 2000);
  }
  return html`<span class="command"
    ><code><${Name} text=${text} most=${1000} /></code
    ><button type="button" onClick=${copy} aria-label=${`Copy: ${plain(text)}`}>${said || "copy"}</button><span class="unseen" role="status">${said}</span></span
  >`;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // There is no clipboard for pages that came over plain HTTP from elsewhere.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

// -- lists

/** A table that becomes cards where it is narrow, sorted by any column that has `sort`, the name of a row's member.
 *
 * `columns`: `{head, cell(row), sort, isNumber, isDescending, word, class}` (`text`: sentences; `minor`: left out on a phone), of which the first is the row's name; `parts` and `query`:
 * the address that the order is kept in. `keyed(row)`: what a row is known by; equal ones are told apart by their order.
 */
export function Table({ label, columns, rows, keyed, parts, query = {}, nothing = "None.", more = null }) {
  if (!rows.length) return html`<p class="nothing">${nothing}</p>`;
  const seen = new Map();
  const keyOf = (row) => {
    const own = String(keyed ? keyed(row) : rows.indexOf(row));
    const count = (seen.get(own) ?? 0) + 1;
    seen.set(own, count);
    return count > 1 ? `${own} #${count}` : own;
  };
  return html`<div class="table">
    <table role="table" aria-label=${label}>
      <thead role="rowgroup">
        <tr role="row">
          ${columns.map((column) => html`<${Head} key=${column.head} column=${column} parts=${parts} query=${query} />`)}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map(
          (row) => html`<tr role="row" key=${keyOf(row)} class=${more?.(row) ?? null}>
            ${columns.map(
              (column, index) =>
                html`<td role="cell" key=${column.head} data-head=${index ? column.head : null} class=${classOf(column)}><div>${column.cell(row)}</div></td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function classOf({ isNumber, class: own }) {
  return [isNumber ? "number" : "", own ?? ""].join(" ").trim() || null;
}

function Head({ column, parts, query }) {
  const { head, sort, isNumber, isDescending, word } = column;
  const text = word ? html`<${Word} text=${head} word=${word} />` : head;
  const name = isNumber ? "number" : null;
  if (!sort || !parts) return html`<th role="columnheader" scope="col" class=${name}>${text}</th>`;
  const isDown = query.sort === `-${sort}`;
  const isUp = query.sort === sort;
  const next = isDescending ? (isDown ? sort : `-${sort}`) : isUp ? `-${sort}` : sort;
  return html`<th role="columnheader" scope="col" class=${name} aria-sort=${isUp ? "ascending" : isDown ? "descending" : null}>
    <a class="sort" href=${toQuery(parts, { ...query, sort: next, offset: "" })} data-replace>${head}<span aria-hidden="true">${isUp ? " ▴" : isDown ? " ▾" : ""}</span></a>
  </th>`;
}

/** Rows that are all here, in the order that the address asks for; `usual` where it asks for none. */
export function sorted(rows, query, usual = "") {
  const asked = query.sort || usual;
  if (!asked) return rows;
  const down = asked.startsWith("-");
  const member = asked.replace(/^-/, "");
  const compare = (a, b) => {
    const [x, y] = [a[member] ?? "", b[member] ?? ""];
    if (typeof x === "number" && typeof y === "number") return x - y;
    return String(x).localeCompare(String(y), "en", { numeric: true });
  };
  return [...rows].sort((a, b) => (down ? -compare(a, b) : compare(a, b)));
}

/** Where a piece of a list is, with links to the piece before and the one after. `found`: `{items, total, offset}`. */
export function Pager({ found, parts, query, noun = "", at = "top" }) {
  const offset = found.offset ?? 0;
  const last = offset + found.items.length;
  const turn = (which, next) =>
    html`<a href=${toQuery(parts, { ...query, offset: next || "" })} data-page=${at === "top" ? which : null} data-top rel=${which === "next" ? "next" : "prev"}>${which}</a>`;
  const isAll = offset === 0 && last >= found.total;
  if (at !== "top" && isAll) return null;
  return html`<p class="pager" role=${at === "top" ? "status" : null}>
    <span>${found.total ? (isAll ? `${number(found.total)} ${noun}` : `${number(offset + 1)} to ${number(last)} of ${number(found.total)}`) : "none"}</span>
    ${offset > 0 ? turn("previous", Math.max(0, offset - PAGE)) : null} ${last < found.total ? turn("next", offset + PAGE) : null}
  </p>`;
}

/** A field that narrows a list: the address has it as `q`. */
export function Filter({ parts, query, label, name = "q" }) {
  const asked = query[name] ?? "";
  const [draft, setDraft] = useState(asked);
  const field = useRef(null);
  const timer = useRef(null);
  useEffect(() => {
    if (document.activeElement !== field.current) setDraft(asked);
  }, [asked]);
  function narrow(event) {
    const text = event.target.value;
    setDraft(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => location.replace(toQuery(parts, { ...query, [name]: text.trim(), offset: "" })), 250);
  }
  return html`<label class="filter"
    ><span class="unseen">Filter ${label}</span
    ><input type="search" ref=${field} value=${draft} onInput=${narrow} placeholder=${`Filter ${label}`} maxlength="200" autocomplete="off" spellcheck="false"
  /></label>`;
}

/** The states of a list's entries with their numbers, each a filter: `counts` of the answer, `ill` where there are such. */
export function States({ counts = {}, parts, query, all = "all" }) {
  const entries = Object.entries(counts).filter(([, count]) => count);
  if (entries.length < 2 && !query.state) return null;
  const total = entries.reduce((sum, [, count]) => sum + count, 0);
  const one = (state, text, count) => {
    const isOn = (query.state ?? "") === state;
    return html`<a key=${state} class="chip" href=${toQuery(parts, { ...query, state: isOn ? "" : state, offset: "" })} aria-current=${isOn ? "true" : null} data-replace
      >${text} <b>${number(count)}</b></a
    >`;
  };
  if (query.state && !(query.state in counts)) entries.push([query.state, 0]);
  return html`<nav class="chips" aria-label="Filter by state">${one("", all, total)} ${entries.map(([state, count]) => one(state, state, count))}</nav>`;
}

/** The filters of an address that nothing else shows, each with a way to take it away. `names`: members of the query. */
export function Chips({ parts, query, names }) {
  const on = names.filter((name) => query[name]);
  if (!on.length) return null;
  return html`<p class="chips">
    ${on.map(
      (name) =>
        html`<a class="chip on" key=${name} href=${toQuery(parts, { ...query, [name]: "", offset: "" })} data-replace aria-label=${`Remove the filter ${name} ${plain(query[name])}`}
          >${name}: <${Name} text=${query[name]} most=${60} /> <span aria-hidden="true">✕</span></a
        >`,
    )}
  </p>`;
}

/** Terms and their values; pairs without a value are left out. */
export function Facts({ pairs }) {
  return html`<dl class="facts">
    ${pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .map(
        ([term, value, word]) => html`<div key=${term}>
          <dt>${word ? html`<${Word} text=${term} word=${word} />` : term}</dt>
          <dd>${typeof value === "string" || typeof value === "number" ? html`<${Name} text=${value} />` : value}</dd>
        </div>`,
      )}
  </dl>`;
}

/** A part of a view with a heading; `folded`: closed until somebody opens it, its content made only then. */
export function Part({ title, children, id = undefined, aside = null }) {
  return html`<section class="part" id=${id}>
    <div class="title"><h2>${title}</h2>${aside}</div>
    ${children}
  </section>`;
}

/** The same, closed until somebody opens it; `children`: a function, called only then. */
export function Folded({ title, aside = null, open = false, children }) {
  const [isOpen, setOpen] = useState(open);
  return html`<details class="part" open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h2>${title}</h2>${aside}</summary>
    ${isOpen ? children() : null}
  </details>`;
}

/** What the API answers, asked again at each refresh: `[answer, error]`, both null before the first. `parts` null: nothing. */
export function useAnswer(parts, query = {}) {
  const [found, setFound] = useState([null, null]);
  const turn = turns.use();
  const key = JSON.stringify([parts, query]);
  useEffect(() => {
    if (!parts) return undefined;
    const own = new AbortController();
    get(parts, query, own.signal).then(
      (answer) => setFound([answer, null]),
      (error) => {
        if (!own.signal.aborted) setFound(([before]) => [error.status ? null : before, error]);
      },
    );
    return () => own.abort();
  }, [key, turn]);
  return found;
}

/** Lines of a unified diff, each with its mood. */
export function Diff({ text }) {
  const lines = Array.isArray(text) ? text : String(text).split("\n");
  const mood = (line) => (line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "hunk" : null);
  return html`<pre class="diff" tabindex="0">${lines.slice(0, 2000).map((line) => html`<span class=${mood(line)}>${plain(line.slice(0, 2000))}${"\n"}</span>`)}</pre>`;
}

/** What stands in for a view that has not been read yet. */
export function Skeleton() {
  return html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i><i></i></div>`;
}

/** The sections of `describe`, but those whose titles begin with one that is `known` from elsewhere; `only`: those
 * whose titles begin so, without their titles; `self`: the object that they are about, to which they need not link. */
export function Described({ described, known = [], only = "", self = "" }) {
  if (!described) return null;
  return described.sections
    .filter((section) => section.lines.length && section.title.startsWith(only) && !known.some((each) => section.title.startsWith(each)))
    .map(
      (section) => html`<div key=${section.title}>
        ${only ? null : html`<h3><${Name} text=${section.title} /></h3>`}
        <ul class="words">
          ${distinct(section.lines).slice(0, 100).map(
            (line) => html`<li>
              <${Name} text=${line.text} most=${2000} />
              ${line.object ? html`${" "}<span class="by">${line.object === self ? null : html`<${ObjectLink} text=${line.object} />`} <${Place} where=${line.place} /></span>` : null}
            </li>`,
          )}
        </ul>
      </div>`,
    );
}

/** Lines, of which several workloads may have the same. */
function distinct(lines) {
  return lines.filter((line, index) => lines.findIndex((each) => each.text === line.text && each.object === line.object) === index);
}

export { bytes, duration, number };
