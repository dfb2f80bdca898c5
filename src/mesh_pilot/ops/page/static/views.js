// All views. A view: `{at, place, title, load, show, isLive, quietMs}`.
//
// - `at`: its address, such as `proxies/:name`; `place`: of which of `PLACES` it is one;
// - `load(parts, query, signal)`: what it needs of the API; asked again at each refresh, unless `isLive` is false;
// - `quietMs`: after how long without an event it is read again, if sooner than others;
// - `show({data, parts, query})`: a component, whose first heading is the title of the window.

import { views as ask } from "./ask.js";
import { views as calls } from "./calls.js";
import { views as changes } from "./changes.js";
import { views as gateways } from "./gateways.js";
import { views as mesh } from "./mesh.js";
import { views as now } from "./now.js";
import { views as objects } from "./objects.js";
import { views as proxies } from "./proxies.js";
import { views as search } from "./search.js";
import { views as services } from "./services.js";

const VIEWS = [...now, ...services, ...calls, ...gateways, ...mesh, ...proxies, ...changes, ...ask, ...objects, ...search].map((view) => ({ ...view, pattern: view.at.split("/") }));

/** The view of an address, by the parts of that; undefined if there is none. */
export function viewOf(parts) {
  const own = parts.length ? parts : [""];
  return VIEWS.find(({ pattern }) => pattern.length === own.length && pattern.every((part, at) => part.startsWith(":") || part === own[at]));
}
