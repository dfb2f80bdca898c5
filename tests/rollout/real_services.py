"""The services that rollouts with real Envoys route to: ``reviews.test``, and ``refused.test`` where no one listens."""

from __future__ import annotations

_SERVICE = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints: [{{address: 127.0.0.1, ports: {{http: {target}}}}}]
"""


def services(port: int, *, reviews: int, refused: int) -> str:
    """Both at a port, given the ports at which they are."""
    targets = {"reviews": reviews, "refused": refused}
    return "".join(_SERVICE.format(name=name, port=port, target=target) for name, target in targets.items())
