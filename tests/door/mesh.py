"""The small mesh that random objects are put into: every object can hit something here, and nothing here is refused."""

from __future__ import annotations

from pathlib import Path

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.events import Item, Secret
from mesh_pilot.model.proxy import NodeType
from tests.support.certificates import write_certificates
from tests.support.worlds import configs

SIDECAR = EnvoyNode("web", "shop", "127.0.1.1", labels={"app": "web", "version": "v1"})
ROUTER = EnvoyNode("edge", "shop", "127.0.1.2", NodeType.ROUTER, labels={"istio": "edge"})

_MANIFESTS = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  addresses: [10.8.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 9080, name: http, protocol: HTTP}
  - {number: 80, name: http-80, protocol: HTTP}
  - {number: 9443, name: tls, protocol: TLS}
  - {number: 9000, name: tcp, protocol: TCP}
  endpoints:
  - {address: 127.0.7.1, labels: {app: reviews, version: v1}, locality: region/zone/sub}
  - {address: 127.0.7.2, labels: {app: reviews, version: v2, security.istio.io/tlsMode: istio}, locality: r2/z}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ratings, namespace: other, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  hosts: [ratings.other.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: grpc, protocol: GRPC}, {number: 9000, name: mongo, protocol: MONGO}]
  endpoints:
  - {address: 127.0.7.3, labels: {app: ratings, version: v1}}
  - {address: 127.0.7.5, labels: {app: ratings, version: v2}, network: net1}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: shop, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  hosts: [machines.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: named, namespace: shop, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  hosts: [named.example.test]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: edge}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop, creationTimestamp: "2024-01-03T00:00:00Z"}
spec:
  hosts: [web.shop.svc.cluster.local]
  addresses: [10.8.0.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 9000, name: tcp, protocol: TCP}
  endpoints: [{address: 127.0.1.1, labels: {app: web, version: v1}, serviceAccount: web}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ext, namespace: shop, creationTimestamp: "2024-01-04T00:00:00Z"}
spec:
  hosts: [ext.example.test]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 443, name: https, protocol: HTTPS}, {number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.7.4}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop, creationTimestamp: "2024-01-05T00:00:00Z"}
spec:
  host: reviews.shop.svc.cluster.local
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop, creationTimestamp: "2024-01-06T00:00:00Z"}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 31080, name: http, protocol: HTTP}, hosts: ["*"]}
  - port: {number: 31443, name: https, protocol: HTTPS}
    hosts: ["*.example.test"]
    tls: {mode: SIMPLE, credentialName: shop-cert}
  - {port: {number: 31444, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: PASSTHROUGH}}
  - {port: {number: 31400, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: evil, namespace: other, creationTimestamp: "2024-01-07T00:00:00Z"}
spec:
  hosts: [evil.test]
  gateways: [shop/edge, mesh]
  http: [{route: [{destination: {host: reviews.shop.svc.cluster.local, subset: v1}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: sni, namespace: other, creationTimestamp: "2024-01-08T00:00:00Z"}
spec:
  hosts: [secure.test]
  gateways: [shop/edge]
  tls:
  - match: [{sniHosts: [secure.test]}]
    route: [{destination: {host: reviews.shop.svc.cluster.local, port: {number: 9443}}}]
"""


def fixed_items(folder: Path) -> list[Item]:
    """The objects of the mesh and its credential, whose files are made in `folder`."""
    files = write_certificates(folder, "shop", dns=("a.example.test",))
    certificate, key, ca = (path.read_bytes() for path in (files.certificate, files.key, files.ca))
    return [*configs(_MANIFESTS), Secret("shop-cert", "shop", certificate, key, ca)]
