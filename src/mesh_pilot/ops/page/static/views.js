// All views. A view: `{at, place, title, load, show, isLive}`.
//
// - `at`: its address, such as `proxies/:name`; `place`: of which of `PLACES` it is one;
// - `load(parts, query, signal)`: what it needs of the API; asked again at each refresh, unless `isLive` is false;
// - `show({data, parts, query})`: a component, whose first heading is the title of the window.

import { views as legacy } from "./legacy.js";
import { views as changes } from "./changes.js";
import { views as now } from "./now.js";
import { views as proxies } from "./proxies.js";

const VIEWS = [...now, ...proxies, ...changes, ...legacy].map((view) => ({ ...view, pattern: view.at.split("/") }));

/** The view of an address, by the parts of that; undefined if there is none. */
export function viewOf(parts) {
  const own = parts.length ? parts : [""];
  return VIEWS.find(({ pattern }) => pattern.length === own.length && pattern.every((part, at) => part.startsWith(":") || part === own[at]));
}
