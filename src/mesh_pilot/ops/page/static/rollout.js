// A rollout: its step, what it waits for, the commands of whoever may end it.

import { Command, Facts, Name, ObjectLink, Place, Some } from "./components.js";
import { html, to } from "./lib.js";
import { counted, duration, number } from "./text.js";

/** The answer of `/rollout`, with its commands. */
export function Rollout({ of, isFull = false }) {
  const steps = of.steps ?? [];
  const step = Math.max(1, of.step ?? 1);
  const isBack = of.phase === "taken back";
  const canary = of.canary ?? {};
  return html`
    <p>
      <strong>Rollout ${of.phase}${steps.length && !isBack ? `, step ${step} of ${steps.length}` : ""}</strong>
      ${canary.chosen ? html` · ${number(canary.accepted)} of ${counted(canary.chosen, "chosen proxy", "chosen proxies")} ${canary.accepted === 1 ? "has" : "have"} accepted it, of ${number(of.proxies)} in all` : null}
    </p>
    ${steps.length && !isBack
      ? html`<div class="steps" role="img" aria-label=${`step ${step} of ${steps.length}`}>
          ${steps.map((share, at) => html`<span key=${at} class=${at < step - 1 ? "done" : at === step - 1 ? "at" : null} title=${`${share} % of the ${of.by === "weights" ? "way" : "proxies"}`}></span>`)}
        </div>`
      : null}
    <p>
      <${Some} list=${of.objects ?? []} most=${isFull ? 20 : 3} total=${of.changes} shown=${(each) => html`<${ObjectLink} text=${each.object} />${isFull ? html` <${Place} where=${each.where} />` : ""}`} />
    </p>
    ${of.waits_for ? html`<p>Waits for <${Name} text=${of.waits_for} most=${500} /></p>` : null}
    ${isFull && of.traffic ? html`<p class="quiet"><${Name} text=${of.traffic} most=${300} /></p>` : null}
    ${of.reason ? html`<p class="bad"><${Name} text=${of.reason} most=${1000} /></p>` : null}
    ${isFull
      ? html`<${Facts}
          pairs=${[
            ["steps", steps.length ? steps.map((share) => `${share} %`).join(", ") : null],
            ["between steps", of.interval ? duration(of.interval) : null],
            ["chosen", canary.names?.length ? html`<${Some} list=${canary.names} most=${8} total=${canary.chosen} shown=${(each) => html`<a href=${to("proxies", each)}><${Name} text=${each} /></a>`} />` : null],
          ]}
        />`
      : null}
    ${of.commands?.length ? html`<div class="commands">${of.commands.map((each) => html`<${Command} key=${each} text=${each} />`)}</div>` : null}
  `;
}
