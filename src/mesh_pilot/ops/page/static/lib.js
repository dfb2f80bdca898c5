// What renders: Preact, its hooks, and templates of htm. All text is set as text, never as HTML, so that no name of the
// mesh is more than a name.

import { Fragment, h, render } from "./vendor/preact.js";
import { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

/** A template: html`<p>${text}</p>`; components as html`<${Name} text=${text} />`. */
export const html = htm.bind(h);

export { Fragment, render, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };

/** The address of a view: `#/` and its parts, each escaped. */
export function to(...parts) {
  return "#/" + parts.map((part) => encodeURIComponent(wellFormed(part))).join("/");
}

/** The same with a query; members that are empty are left out. */
export function toQuery(parts, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, wellFormed(value)])).toString();
  return to(...parts) + (text ? "?" + text : "");
}

function wellFormed(text) {
  return String(text).replace(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g, "\uFFFD");
}

/** The parts and the query of an address. */
export function parsed(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** A value that components watch: `get`, `set`, and `use` within a component. */
export function signal(value) {
  const watchers = new Set();
  const own = {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    use() {
      const [seen, see] = useState(value);
      useLayoutEffect(() => {
        see(value);
        watchers.add(see);
        return () => watchers.delete(see);
      }, []);
      return seen;
    },
  };
  return own;
}
