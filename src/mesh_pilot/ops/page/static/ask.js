// Ask: what a request of a proxy would meet, step by step, with the lines that decide. Fields are completed from what is
// connected.

import { ApiError, get } from "./api.js";
import { Badge, Command, Link, Mark, Name, ObjectLink, Part, Place } from "./components.js";
import { html, to, toQuery, useEffect, useRef, useState } from "./lib.js";
import { seesAll, visitor } from "./live.js";

const ASKED = ["ask"];

export const views = [{ at: "ask", place: "ask", title: "What would a request meet?", load: loadAsk, show: Ask, isLive: false }];

async function loadAsk(parts, query, signal) {
  const [proxies, services] = await Promise.all([get(["proxies"], { limit: 20 }, signal), get(["services"], { limit: 20 }, signal)]);
  const known = { proxies: proxies.items.map((each) => each.proxy), services: services.items };
  if (!query.proxy || !query.to) return { known };
  return { known, ...(await answered(query, signal)) };
}

async function answered(query, signal) {
  const header = (query.header ?? "").split(";").map((each) => each.trim()).filter(Boolean);
  try {
    return { found: await get(["why"], { proxy: query.proxy, to: query.to, method: query.method, header }, signal) };
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 0) throw error;
    return { error: error.message };
  }
}

function Ask({ data, query }) {
  if (!seesAll(visitor.use())) {
    return html`<h1>What would a request meet?</h1>
      <p class="quiet">An answer names the lines of any namespace, so asking needs the role view in all of them.</p>`;
  }
  return html`
    <h1>What would a request meet?</h1>
    <${Form} key=${JSON.stringify(query)} query=${query} known=${data.known} />
    ${data.known.proxies.length
      ? null
      : html`<${Part} title="No proxy is connected"><p>A question is about a request of a connected proxy. Give one an identity with <code>mesh-pilot token create</code>, and start it with <code>mesh-pilot proxy</code>.</p><//>`}
    ${data.error ? html`<section class="part"><p class="failed" role="alert"><${Name} text=${data.error} most=${2000} /></p></section>` : null}
    ${data.found ? html`<${Answer} of=${data.found} /><${Copy} query=${query} />` : null}
    ${!query.to && data.known.proxies.length ? html`<${Examples} known=${data.known} />` : null}
  `;
}

// -- the question

const FIELDS = [
  { name: "proxy", text: "From the proxy", example: "web-1.shop", complete: completeProxies },
  { name: "to", text: "To", example: "reviews.shop.svc.cluster.local:9080/path", complete: completeHosts },
];

const MORE = [
  { name: "method", text: "Method", example: "GET" },
  { name: "header", text: "Headers", example: "NAME=VALUE; NAME=VALUE" },
];

async function completeProxies(text, signal) {
  const found = await get(["proxies"], { q: text, limit: 20 }, signal);
  return found.items.map((each) => each.proxy);
}

async function completeHosts(text, signal) {
  const host = text.replace(/^\w+:\/\//, "").split(/[:/?#]/)[0];
  const found = await get(["services"], { q: host, limit: 20 }, signal);
  return found.items.flatMap((each) => each.ports.map((port) => `${each.host}:${port.number}/`)).slice(0, 20);
}

function Form({ query, known }) {
  const [isMore, setMore] = useState(Boolean((query.method && query.method !== "GET") || query.header));
  function ask(event) {
    event.preventDefault();
    const asked = Object.fromEntries([...new FormData(event.target)].map(([field, value]) => [field, value.trim()]));
    location.hash = toQuery(ASKED, asked).slice(1);
  }
  return html`<form class="part ask" onSubmit=${ask}>
    ${FIELDS.map((field) => html`<${Field} key=${field.name} of=${field} value=${query[field.name] ?? only(field, known)} required />`)}
    ${isMore ? MORE.map((field) => html`<${Field} key=${field.name} of=${field} value=${query[field.name] ?? ""} />`) : null}
    <p><button class="main">Ask</button> ${isMore ? null : html`<button type="button" onClick=${() => setMore(true)}>Method and headers</button>`}</p>
  </form>`;
}

/** The proxy, where there is only one. */
function only(field, known) {
  return field.name === "proxy" && known.proxies.length === 1 ? known.proxies[0] : "";
}

function Field({ of, value, required = false }) {
  const [choices, setChoices] = useState([]);
  const timer = useRef(null);
  const own = useRef(null);
  useEffect(() => () => (clearTimeout(timer.current), own.current?.abort()), []);
  function complete(text) {
    if (!of.complete) return;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      own.current?.abort();
      own.current = new AbortController();
      of.complete(text, own.current.signal).then(setChoices, () => {});
    }, 150);
  }
  const list = `choices-${of.name}`;
  return html`<label>
    <span>${of.text}</span>
    <input
      name=${of.name}
      placeholder=${of.example}
      required=${required}
      defaultValue=${value}
      list=${of.complete ? list : null}
      onFocus=${(event) => complete(event.target.value)}
      onInput=${(event) => complete(event.target.value)}
      maxlength="2000"
      autocomplete="off"
      spellcheck="false"
    />
    ${of.complete ? html`<datalist id=${list}>${choices.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>` : null}
  </label>`;
}

function Examples({ known }) {
  const proxy = known.proxies[0];
  const some = known.services.filter((each) => each.ports.length).slice(0, 4);
  if (!some.length) return null;
  return html`<${Part} title="Such as">
    <ul class="plainlist found">
      ${some.map((each) => {
        const text = `${each.host}:${each.ports[0].number}/`;
        return html`<li key=${text}>
          <${Link} href=${toQuery(ASKED, { proxy, to: text })} text=${text} entry /><span class="quiet">${" from "}<${Name} text=${proxy} /></span>
        </li>`;
      })}
    </ul>
  <//>`;
}

// -- the answer

function Answer({ of }) {
  return html`<${Part} title="Answer"><${Story} of=${of} /><//>`;
}

function Story({ of }) {
  const fails = (of.outcomes ?? []).some((each) => each.fails);
  return html`
    <p class="outcome">${of.outcomes ? html`<${Mark} severity=${fails ? "error" : "ok"} />${" "}` : null}<${Name} text=${of.outcome} most=${2000} /></p>
    ${of.notes.map((note) => html`<p class="quiet"><${Name} text=${note} most=${2000} /></p>`)}
    <ol class="story">${of.steps.map((each, index) => html`<${Step} key=${index} of=${each} />`)}</ol>
    ${of.nearly.length ? html`<h3>Nearly chosen</h3><ul class="story">${of.nearly.map((each, index) => html`<${Step} key=${index} of=${each} />`)}</ul>` : null}
    ${of.destinations?.map(
      (each) => html`<div class="hop" key=${each.endpoint}>
        <h3>At <${Link} href=${to("proxies", each.proxy)} text=${each.proxy} />, <${Name} text=${each.endpoint} /></h3>
        <${Story} of=${each} />
      </div>`,
    )}
  `;
}

function Step({ of }) {
  return html`<li>
    <span class="step">${of.step}</span>
    <div>
      <${Name} text=${of.text} most=${2000} />
      ${of.decided_by.map(
        (by, index) => html`<div class="by" key=${index}>
          <${ObjectLink} text=${by.object} /> ${by.field ? html`<code><${Name} text=${by.field} /></code>` : null} <${Place} where=${by.place} /> <${Name} text=${by.text} />
        </div>`,
      )}
    </div>
  </li>`;
}

function Copy({ query }) {
  const quoted = (text) => (/^[\w.:/=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const headers = (query.header ?? "").split(";").map((each) => each.trim()).filter(Boolean);
  const words = ["mesh-pilot why", quoted(query.to), "--from", quoted(query.proxy)];
  if (query.method && query.method !== "GET") words.push("--method", quoted(query.method));
  for (const each of headers) words.push("--header", quoted(each));
  return html`<p>The same in a terminal: <${Command} text=${words.join(" ")} /></p>`;
}
