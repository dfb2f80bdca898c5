"""The mesh that the page is looked at with."""

GOOD = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints:
  - {address: 10.0.0.1, labels: {version: v1}, locality: eu/a}
  - {address: 10.0.0.2, labels: {version: v2}, locality: eu/b}
  - {address: 10.0.0.3, labels: {version: v2}, locality: eu/b}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ratings, namespace: shop}
spec:
  hosts: [ratings.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.1.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec:
  host: reviews
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews]
  gateways: [mesh, edge]
  http:
  - name: testers
    match: [{uri: {prefix: /api}, headers: {end-user: {exact: jason}}}, {uri: {regex: "/v2/.*"}}]
    route: [{destination: {host: reviews, subset: v2}}]
    timeout: 5s
    retries: {attempts: 3}
  - match: [{uri: {prefix: /old}}]
    redirect: {uri: /new}
  - route:
    - {destination: {host: reviews, subset: v1}, weight: 90}
    - {destination: {host: reviews, subset: v3}, weight: 5}
    - {destination: {host: ratings}, weight: 5}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{hosts: ["./ratings.shop.svc.cluster.local"]}]
"""

WELL = (
    GOOD.rpartition("---")[0]
    .replace("    - {destination: {host: reviews, subset: v3}, weight: 5}\n", "")
    .replace("weight: 5}", "weight: 10}")
)
"""The same without what the analyzers find."""

BROKEN = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: broken, namespace: shop}
spec:
  hosts: [broken.test]
  ports: [{number: many, name: http, protocol: HTTP}]
"""

HOST = "reviews.shop.svc.cluster.local"
REASON = "Error adding/updating cluster(s) outbound|9080||reviews: no"

VIEWS = {
    "now": "#/",
    "sources": "#/sources",
    "services": "#/services",
    "service": f"#/services/shop/{HOST}",
    "proxies": "#/proxies",
    "proxy": "#/proxies/web-1.shop",
    "resource": f"#/proxies/web-1.shop/CDS/outbound%7C9080%7C%7C{HOST}",
    "objects": "#/objects",
    "object": "#/objects/VirtualService/shop/reviews",
    "calls": "#/traffic",
    "reporters": "#/traffic/proxies",
    "gateways": "#/gateways",
    "gateway": "#/gateways/shop/edge",
    "mesh": "#/mesh",
    "changes": "#/changes",
    "revision": "#/changes/2",
    "why": "#/ask",
    "search": "#/search?q=rev",
}
"""The address of each view, with something in it."""
