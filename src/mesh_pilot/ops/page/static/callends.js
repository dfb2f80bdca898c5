// The ends of calls: who calls, and what is called.

import { to, toQuery } from "./lib.js";

/** Ends that are not services, in words. */
export const KINDS = {
  gateway: "gateway",
  namespace: "namespace",
  passthrough: "hosts that no service has",
  black_hole: "refused: no service",
  cluster: "cluster",
};

/** The address of an end: of a service its view, else the calls of it. */
export function endHref({ kind, namespace, name }) {
  if (kind === "service" && namespace) return to("services", namespace, name);
  if (kind === "namespace") return namespace ? toQuery(["traffic"], { namespace }) : null;
  return kind === "proxy" ? to("proxies", name) : toQuery(["traffic"], { namespace, q: name });
}

export function endName({ kind, name }) {
  return kind === "namespace" ? name || "no service" : name;
}
