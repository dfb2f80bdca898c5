// The calls of one service: ten minutes of them, who makes them, and what it calls itself; and those of one proxy.

import { rarely } from "./api.js";
import { CallsPicture } from "./callspicture.js";
import { CallsTable } from "./calls.js";
import { Facts, Name, Part, useAnswer } from "./components.js";
import { html, toQuery } from "./lib.js";
import { Before, Chart, Counted, Particulars, Rate, Success, perSecond } from "./rates.js";
import { counted, number } from "./text.js";

const MOST = 100;

/** Labels that name a workload, as Istio's telemetry reads them. */
const NAMING = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];

/** What the API tells of the calls of a service: `{sums, callers, destinations}`; null if it tells nothing. */
export async function callsOf({ namespace, host, endpoints }) {
  const labels = endpoints[0]?.labels ?? {};
  const workload = NAMING.map((each) => labels[each]).find(Boolean) ?? host.split(".")[0];
  const [sums, callers, near] = await Promise.all([
    rarely(["traffic", "services"], { service: host, namespace }),
    rarely(["traffic"], { service: host, namespace, limit: MOST }),
    rarely(["traffic"], { namespace, q: workload, limit: MOST }),
  ]);
  if (!sums || !callers || !near) return null;
  const isOwn = (end) => end.name === host && end.namespace === namespace;
  return {
    window: callers,
    own: sums.items.find((each) => isOwn(each.service)),
    callers: callers.items.filter((each) => isOwn(each.called)),
    destinations: near.items.filter((each) => each.caller.name === workload && each.caller.namespace === namespace && !isOwn(each.called)),
  };
}

export function CallsOf({ calls, namespace }) {
  const { window: seen, own, callers, destinations } = calls;
  const isCompared = seen.before_seconds > 0;
  const more = html`<a href=${toQuery(["traffic"], { namespace })}>calls of the namespace</a>`;
  if (seen.advice) return html`<${Part} title="Calls"><${Counted} window=${seen} /><//>`;
  return html`<${Part} title="Calls" aside=${more}>
      ${own ? html`<${Sums} of=${own} seconds=${seen.seconds} isCompared=${isCompared} />` : html`<p class="nothing">No proxy has counted a call of it in the last ten minutes.</p>`}
      <${Counted} window=${seen} />
    <//>
    ${callers.length || destinations.length ? html`<${CallsPicture} rows=${[...callers, ...destinations]} expanded=${null} namespace=${namespace} table="calls-of" />` : null}
    <div id="calls-of">
      ${callers.length ? html`<${Part} title="Callers"><${CallsTable} rows=${callers} parts=${null} isCompared=${isCompared} without="called" /><//>` : null}
      ${destinations.length ? html`<${Part} title="What it calls"><${CallsTable} rows=${destinations} parts=${null} isCompared=${isCompared} without="caller" /><//>` : null}
    </div>`;
}

/** What a proxy calls; asked for when it is shown. */
export function CallsOfProxy({ id }) {
  const [found, error] = useAnswer(["traffic"], { proxy: id, limit: MOST });
  if (error && !found) return html`<p class="failed"><${Name} text=${error.message} /></p>`;
  if (!found) return null;
  if (found.items.length) return html`<${CallsTable} rows=${found.items} parts=${null} isCompared=${found.before_seconds > 0} without="caller" />`;
  return found.advice ? html`<${Counted} window=${found} />` : html`<p class="nothing">It has made no calls in the last ten minutes, or does not report. <a href="#/traffic/proxies">Who reports</a></p>`;
}

function Sums({ of, seconds, isCompared }) {
  const most = Math.max(...of.series.tries) / of.series.seconds;
  return html`
    <${Chart} of=${of.series} unit=${of.unit} isLarge />
    <p class="axis quiet"><span>ten minutes ago</span><span>at most ${perSecond(most)} ${of.unit} a second; red: failed</span><span>now</span></p>
    <${Facts}
      pairs=${[
        ["a second", html`<${Rate} of=${of} />`],
        ["success", of.tries ? html`<${Success} of=${of} />` : null, "success"],
        ["ten minutes ago", isCompared ? html`<${Before} of=${of} />` : null],
        ["in flight", number(of.in_flight), "in flight"],
        ["callers", of.callers ? counted(of.callers, "workload") : "none in the mesh"],
        ["arrived", of.inbound ? html`${perSecond(of.inbound.per_second)} a second${of.is_shared ? ", with other services at its port" : ""}` : "unknown: none of its proxies counts", "arrived"],
        ["from outside", of.outside === null ? null : of.outside ? `${perSecond(of.outside / seconds)} a second` : "none", "from outside"],
        ["denied", of.denied ? `${counted(of.denied, "call")} by policies` : null],
        ["notes", of.is_worse || !of.is_complete || of.is_partial || of.unit === "attempts" || !of.routed_by.length ? html`<${Particulars} of=${{ ...of, denied: 0, is_routed: of.routed_by.length > 0 }} />` : null],
      ]}
    />
  `;
}
