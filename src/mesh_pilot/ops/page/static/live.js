// Contact with the control plane: its events, or where it has no place for another listener, questions every few seconds.
// A page that nobody looks at does neither.

import { onAnswer } from "./api.js";
import { signal } from "./lib.js";

const KINDS = ["revision", "proxies", "nack", "sync", "problems", "reset", "beat", "over"];
const POLL_MS = 8000;
const AGAIN_MS = 30000;

/** Without a word from the plane for so long, what is shown is old: a stream has a beat every five seconds. */
export const OLD_MS = 10000;

/** When the control plane last said something, in milliseconds; 0 before it has. */
export const contact = signal(0);

/** True once what is shown is old. */
export const isOld = signal(false);

/** What `/whoami` says of whoever looks; null until it has. */
export const visitor = signal(null);

/** False for who may view some namespaces only. */
export function seesAll(who) {
  return !who || who.role !== null;
}

/** Grows with each refresh of the view: what components ask for themselves is asked again with it. */
export const turns = signal(0);

/** The seconds that have passed, for what says how long ago something was; one timer for all. */
export const now = signal(Date.now());

let skew = 0;

/** The time at the control plane, by the last answer that had one. */
export function planeTime() {
  return Date.now() + skew;
}

/** Notes what time it is at the control plane. */
export function noteTime(text) {
  const at = Date.parse(text);
  // A difference of a second is the way of the answer.
  if (Number.isFinite(at)) skew = Math.abs(at - Date.now()) > 1500 ? at - Date.now() : 0;
}

function heard() {
  contact.set(Date.now());
  isOld.set(false);
}

onAnswer(heard);

function tick() {
  if (document.hidden) return;
  isOld.set(contact.get() !== 0 && Date.now() - contact.get() > OLD_MS);
  if (Date.now() - now.get() >= 5000) now.set(Date.now());
}

/** Calls `told(kind, data)` for each event. */
export function listen(told) {
  let source = null;
  let poll = null;
  let again = null;

  function open() {
    clearTimeout(again);
    if (source || document.hidden) return;
    source = new EventSource("/api/v1/events");
    source.onopen = () => {
      const isBack = contact.get() !== 0;
      heard();
      if (isBack) told("reset", {}); // what happened since the view was read
    };
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED) return; // it connects again on its own
      close();
      poll ??= setInterval(() => told("poll", {}), POLL_MS);
      again = setTimeout(open, AGAIN_MS);
    };
    // As many listen as may: the stream ends, and the browser tries again on its own.
    source.addEventListener("full", (event) => {
      heard();
      poll ??= setInterval(() => told("poll", {}), Math.min(POLL_MS, 1000 * (parsed(event.data).poll_seconds ?? POLL_MS)));
    });
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => {
        heard();
        const data = parsed(event.data);
        if (kind === "beat") {
          noteTime(data.at);
          stopPolling();
        }
        told(kind, data);
      });
    }
  }

  function close() {
    source?.close();
    source = null;
  }

  function stopPolling() {
    clearInterval(poll);
    poll = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      stopPolling();
      clearTimeout(again);
    } else {
      now.set(Date.now());
      open();
    }
  });
  setInterval(tick, 1000);
  open();
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
