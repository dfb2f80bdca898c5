"""Objects of the small mesh besides those of `tests.door`: who names providers, and what others name."""

from __future__ import annotations

from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import Item, MeshConfigValue
from tests.support.worlds import SOURCE, configs, plain

MESH_CONFIG = """
extensionProviders:
- {name: p1, zipkin: {service: reviews.shop.svc.cluster.local, port: 80}}
- {name: p2, envoyFileAccessLog: {path: /dev/stdout}}
- {name: p3, envoyExtAuthzHttp: {service: reviews.shop.svc.cluster.local, port: 80}}
"""

_MANIFESTS = """
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: named, namespace: shop, creationTimestamp: "2024-09-01T00:00:00Z"}
spec:
  tracing: [{providers: [{name: p1}]}]
  accessLogging: [{providers: [{name: p2}, {name: p5}, {name: p6}, {name: p7}]}]
  metrics: [{providers: [{name: prometheus}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: shop, creationTimestamp: "2024-09-01T00:00:00Z"}
spec:
  selector: {matchLabels: {istio: edge}}
  action: CUSTOM
  provider: {name: p3}
  rules: [{to: [{operation: {paths: [/asked]}}]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system, creationTimestamp: "2024-09-01T00:00:00Z"}
spec: {mtls: {mode: PERMISSIVE}}
"""


def more_items() -> list[Item]:
    mesh = MeshConfigValue(decode_mesh(plain(MESH_CONFIG), origin=Origin(SOURCE, "mesh.yaml")))
    return [mesh, *configs(_MANIFESTS)]
