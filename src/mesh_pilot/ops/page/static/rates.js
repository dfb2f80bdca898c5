// Calls in words: rates, shares, what is unknown; and as a small chart.

import { Badge, Name } from "./components.js";
import { html } from "./lib.js";
import { counted, number } from "./text.js";

/** So many a second: `1,200`, `3.4`, `0.05`. */
export function perSecond(rate) {
  if (rate >= 10) return number(Math.round(rate));
  if (rate >= 1) return rate.toFixed(1);
  return rate > 0 ? String(Number(rate.toPrecision(1))) : "0";
}

/** A share of failures, from 0 to 1: rounded up, so that one failure is not `0 %`. */
export function percent(share) {
  return share < 0.1 ? `${Math.ceil(share * 1000) / 10} %` : `${Math.round(share * 100)} %`;
}

/** Counts of the API in words: `12/s, 3 % fail`; what are not requests says what it is. */
export function callWords({ per_second, unit, rate }) {
  const noun = unit === "requests" ? "" : ` ${unit}`;
  return `${perSecond(per_second)}${noun}/s${rate ? `, ${percent(rate)} fail` : ""}`;
}

/** How bad it is that so many fail, or that it got worse: a severity. */
export function severityOf({ rate, is_worse }) {
  if (is_worse || rate >= 0.05) return "error";
  return rate >= 0.005 ? "warning" : "ok";
}

/** The share that succeeds, rounded down: with one failure it is not `100 %`. An unknown share is a question mark. */
export function Success({ of }) {
  if (of.rate === null || of.rate === undefined) return of.tries ? html`<span class="quiet" title="Failures are not counted here.">?</span>` : null;
  const text = `${Math.floor((1 - of.rate) * 1000) / 10} %`;
  return severityOf(of) === "ok" ? text : html`<${Badge} text=${text} severity=${severityOf(of)} sign />`;
}

/** Calls a second, with the unit where that is not requests. */
export function Rate({ of }) {
  return html`<span>${perSecond(of.per_second)}${of.unit === "requests" ? null : html` <span class="quiet">${of.unit}</span>`}</span>`;
}

/** The same ten minutes ago: `100 %, 12/s`. */
export function Before({ of }) {
  if (!of.before) return html`<span class="quiet">no calls</span>`;
  return html`<span class="quiet">${perSecond(of.before.per_second)}/s${of.before.rate === null ? "" : `, ${Math.floor((1 - of.before.rate) * 1000) / 10} %`}</span>`;
}

/** What is particular about calls: badges. */
export function Particulars({ of }) {
  const found = [
    of.is_worse ? ["worse", "error"] : null,
    of.none_healthy ? [`no healthy endpoint: ${number(of.none_healthy)}`, "error"] : null,
    of.timeouts ? [counted(of.timeouts, "timeout"), "warning"] : null,
    of.connect_failures ? [`not connected: ${number(of.connect_failures)}`, "warning"] : null,
    of.denied ? [`policy denies ${number(of.denied)}`, "warning"] : null,
    of.is_routed === false ? ["no VirtualService", ""] : null,
    of.unit === "attempts" ? ["requests unknown", ""] : null,
    of.is_partial ? ["some callers unknown", ""] : null,
    of.is_complete ? null : ["counts incomplete", ""],
  ].filter(Boolean);
  return html`<span class="badges">${found.map(([text, severity]) => html`<${Badge} key=${text} text=${text} severity=${severity} sign=${severity === "error"} />`)}</span>`;
}

/** What the counts lack, and how many proxies do not count; the API's advice, where none does. */
export function Counted({ window: own }) {
  const who = html` <a href="#/traffic/proxies">Who reports</a>`;
  if (own.advice) return html`<p><${Name} text=${own.advice} most=${1000} />${own.silent ? who : null}</p>`;
  const notes = [
    own.by_load_reports ? `${counted(own.by_load_reports, "proxy reports", "proxies report")} attempts only: requests and errors of these are unknown.` : "",
    own.silent ? `${counted(own.silent, "connected proxy reports", "connected proxies report")} nothing.` : "",
    own.is_complete ? "" : "Counts of some of the time were lost: there was more than is shown.",
    own.before_seconds ? "" : "There is nothing to compare with yet.",
  ].filter(Boolean);
  return notes.length ? html`<p class="quiet">${notes.join(" ")}${who}</p>` : null;
}

/** Numbers of ten minutes, the oldest first, as bars; those that failed are a part of each. */
export function Chart({ of: { tries, failures, seconds }, unit = "requests", isLarge = false }) {
  const [width, height] = [tries.length * (isLarge ? 10 : 1), isLarge ? 72 : 16];
  const most = Math.max(1, ...tries);
  const step = width / tries.length;
  const bars = (numbers) => numbers.map((each, at) => (each ? `M${tenths(at * step)} ${height}v${-tenths(Math.max(1, (each / most) * height))}h${tenths(isLarge ? step - 1 : step)}V${height}z` : "")).join("");
  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
  const label = `${number(sum(tries))} ${unit} in ${Math.round((tries.length * seconds) / 60)} minutes, at most ${perSecond(most / seconds)} a second; ${number(sum(failures))} failed`;
  return html`<svg class=${isLarge ? "chart large" : "chart"} viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} preserveAspectRatio="none" role="img" aria-label=${label}>
    <title>${label}</title><path d=${bars(tries)} /><path class="failed" d=${bars(failures)} />
  </svg>`;
}

function tenths(length) {
  return Math.round(length * 10) / 10;
}
