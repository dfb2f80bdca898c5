// Traffic and Ask.

import { morph, h } from "./dom.js";
import { html, useLayoutEffect, useRef } from "./lib.js";
import { mesh } from "./mesh.js";
import { object, objects } from "./objects.js";
import { search } from "./search.js";
import { service, services } from "./services.js";
import { why } from "./why.js";

function Nodes({ data }) {
  const root = useRef(null);
  useLayoutEffect(() => morph(root.current, h("div", {}, data)));
  return html`<div ref=${root}></div>`;
}

const view = (at, place, title, load, isLive = true) => ({ at, place, title, load, show: Nodes, isLive });

export const views = [
  view("services", "traffic", "Services", services),
  view("services/:namespace/:host", "traffic", "Service", service),
  view("mesh", "traffic", "Mesh", mesh),
  view("objects", "ask", "Objects", objects),
  view("objects/:kind/:namespace/:name", "ask", "Object", object),
  view("search", "ask", "Search", search),
  view("ask", "ask", "What would a request meet?", why, false),
];
