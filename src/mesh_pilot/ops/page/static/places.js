// The five places of the page, and where addresses of earlier versions lead.

/** `tabs`: views of a place, each with the key after `g` that leads to it. */
export const PLACES = [
  { id: "now", text: "Now", href: "#/", key: "n" },
  {
    id: "traffic",
    text: "Traffic",
    href: "#/services",
    key: "t",
    tabs: [
      ["Services", "#/services", "s"],
      ["Calls", "#/traffic", "l"],
      ["Gateways", "#/gateways", "g"],
      ["Mesh", "#/mesh", "m"],
    ],
  },
  { id: "proxies", text: "Proxies", href: "#/proxies", key: "p" },
  { id: "changes", text: "Changes", href: "#/changes", key: "c" },
  {
    id: "ask",
    text: "Ask",
    href: "#/ask",
    key: "a",
    tabs: [
      ["Why", "#/ask", "w"],
      ["Objects", "#/objects", "b"],
      ["Search", "#/search", "f"],
    ],
  },
];

/** By the first part of an address: what it is called now. */
export const MOVED = { overview: "", history: "changes", why: "ask" };
