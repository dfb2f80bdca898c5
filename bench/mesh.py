"""Meshes as folders of YAML: services with endpoints and a VirtualService each, in namespaces, with or without scope.

What events edit is in small files of its own, ``hot-*.yaml``: the first service, and its VirtualService.
"""

from __future__ import annotations

import attrs

PER_FILE = 100
HOT_SERVICE = "bench-hot-service.yaml"
HOT_ROUTE = "bench-hot-route.yaml"
EXTRA = "bench-extra.yaml"


@attrs.frozen(kw_only=True)
class Mesh:
    """How much of everything."""

    services: int = 100
    endpoints: int = 5
    virtual_services: int = 100
    """The first so many services have one each."""
    namespaces: int = 1
    scoped: bool = False
    """True if a Sidecar in each namespace narrows its proxies to that namespace."""

    @property
    def label(self) -> str:
        text = f"{self.services:,} x {self.endpoints}"
        if self.virtual_services != self.services:
            text += f", {self.virtual_services:,} VS"
        if self.namespaces > 1:
            text += f", {self.namespaces} ns{', scoped' if self.scoped else ''}"
        return text

    @property
    def all_namespaces(self) -> list[str]:
        return [f"ns{number}" for number in range(self.namespaces)]

    @property
    def seen_by(self) -> str:
        """The namespace whose proxies see the objects that events edit; empty for all."""
        return "ns0" if self.scoped else ""

    def files(self) -> dict[str, str]:
        """The whole mesh: file names and texts."""
        texts = {HOT_SERVICE: self.service(0), HOT_ROUTE: self.virtual_service(0)}
        for number, group in enumerate(self.groups()):
            texts[f"bench-services-{number:04}.yaml"] = self.service_file(group)
        routed = range(1, self.virtual_services)
        for start in range(0, len(routed), PER_FILE):
            group = routed[start : start + PER_FILE]
            texts[f"bench-routes-{start // PER_FILE:04}.yaml"] = "---".join(map(self.virtual_service, group))
        if self.scoped:
            texts["bench-sidecars.yaml"] = "---".join(map(_sidecar, self.all_namespaces))
        return texts

    def groups(self) -> list[range]:
        """The services of each file but the hot one."""
        rest = range(1, self.services)
        return [rest[start : start + PER_FILE] for start in range(0, len(rest), PER_FILE)]

    def service_file(self, group: range, edit: int = 0) -> str:
        """A file of services; with ``edit`` the first endpoint of each is a new one."""
        return "---".join(self.service(number, edit=edit, edited=1 if edit else 0) for number in group)

    def service(self, number: int, *, edit: int = 0, edited: int = 0) -> str:
        """A ServiceEntry; the first ``edited`` endpoints have the addresses of an edit, see ``edit_marker``."""
        addresses = [self._address(number, at, edit if at < edited else 0) for at in range(self.endpoints)]
        return _service(f"s{number}", self.namespace(number), _vip(number), addresses)

    def extra(self, edit: int) -> str:
        """A service more, with its own name for each edit."""
        return _service(f"extra{edit}", "ns0", _vip(self.services + edit), [self._address(0, 0, edit)])

    def virtual_service(self, number: int, edit: int = 0) -> str:
        """Its only route has a header that tells the edit, see ``route_marker``."""
        return f"""
apiVersion: networking.istio.io/v1beta1
kind: VirtualService
metadata: {{name: s{number}, namespace: {self.namespace(number)}, creationTimestamp: "2024-03-01T00:00:00Z"}}
spec:
  hosts: [s{number}.{self.namespace(number)}.svc.cluster.local]
  http:
  - timeout: {1 + edit % 50}s
    headers: {{request: {{set: {{x-bench: {route_marker(edit) if number == 0 else "plain"}}}}}}}
    route: [{{destination: {{host: s{number}.{self.namespace(number)}.svc.cluster.local}}}}]
"""

    def namespace(self, number: int) -> str:
        return f"ns{number % self.namespaces}"

    def _address(self, service: int, at: int, edit: int) -> str:
        if edit:
            place = service * 16 + at
            return f"{edit_marker(edit)}{place >> 8 & 255}.{place & 255}"
        place = service * self.endpoints + at
        return f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}"


def edit_marker(edit: int) -> str:
    """How the addresses of an edit begin; edits that are 2,250 apart have the same."""
    return f"{203 + edit // 150 % 15}.{100 + edit % 150}."


def route_marker(edit: int) -> str:
    return f"edit-{edit:06}"


def _vip(number: int) -> str:
    return f"240.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _service(name: str, namespace: str, vip: str, addresses: list[str]) -> str:
    lines = "\n".join(
        f"  - {{address: {address}, labels: {{app: {name}, version: v1}}, serviceAccount: {name}}}"
        for address in addresses
    )
    return f"""
apiVersion: networking.istio.io/v1beta1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-01T00:00:00Z"}}
spec:
  hosts: [{name}.{namespace}.svc.cluster.local]
  addresses: [{vip}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {{number: 80, name: http, protocol: HTTP}}
  endpoints:
{lines}
"""


def _sidecar(namespace: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1beta1
kind: Sidecar
metadata: {{name: default, namespace: {namespace}}}
spec:
  egress:
  - hosts: ["./*", "istio-system/*"]
"""
