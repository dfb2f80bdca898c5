"""A control plane that reads its configuration in a real API server, and writes status there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import ApiClient, load_access
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.kubernetes.source.secret_accounts import SecretAccounts
from mesh_pilot.kubernetes.status.settings import StatusSettings
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Grant
from tests.support.apiserver import ApiServer, Object
from tests.support.envoy import eventually
from tests.support.planes import running_plane
from tools.gen_crds import definitions

pytestmark = [pytest.mark.slow, pytest.mark.process]

ISTIO = "networking.istio.io/v1"
STATUS = StatusSettings(messages=True, distribution=True, interval=1.0)


def kinds(*names: str) -> list[Object]:
    return list(definitions(KINDS[name] for name in names))


async def test_status_is_written_once_and_kinds_come_later(apiserver: ApiServer) -> None:
    await apiserver.install(kinds("VirtualService", "DestinationRule", "GatewayClass"))
    async with apiserver.namespace() as namespace:

        async def status(kind: str, name: str, api_version: str = ISTIO) -> Mapping[str, Any]:
            found = await apiserver.ask("GET", await apiserver.path_of(namespace.object(api_version, kind, name)))
            return found.get("status", {})

        async def has(kind: str, name: str, part: str, api_version: str = ISTIO) -> bool:
            return bool((await status(kind, name, api_version)).get(part))

        async def version() -> str:
            path = await apiserver.path_of(namespace.object(ISTIO, "VirtualService", "reviews"))
            return str((await apiserver.ask("GET", path))["metadata"]["resourceVersion"])

        route = {"route": [{"destination": {"host": "nowhere"}}]}
        await apiserver.apply(
            namespace.object("v1", "ConfigMap", "istio", data={"mesh": "trustDomain: here.org\n"}),
            namespace.object(ISTIO, "VirtualService", "reviews", spec={"hosts": ["reviews"], "http": [route]}),
            namespace.object(ISTIO, "DestinationRule", "bad", spec={"host": ""}),
            namespace.object(
                "gateway.networking.k8s.io/v1", "GatewayClass", "istio",
                spec={"controllerName": "istio.io/gateway-controller"},
            ),
        )  # fmt: skip
        registry = KubernetesRegistry(load_access(apiserver.kubeconfig()), has_services=False)
        async with running_plane(registries=(registry,), namespace=namespace.name, status=STATUS) as plane:
            world, writer = plane.state.world, plane.state.status_writer
            assert writer is not None
            assert world.mesh.peek(()).trust_domain == "here.org"
            await eventually(
                lambda: has("VirtualService", "reviews", "validationMessages"), what="messages are written"
            )
            await eventually(lambda: has("VirtualService", "reviews", "conditions"), what="it is followed")
            await eventually(lambda: has("DestinationRule", "bad", "conditions"), what="it is refused")
            class_version = "gateway.networking.k8s.io/v1"
            await eventually(lambda: has("GatewayClass", "istio", "conditions", class_version), what="it is accepted")
            reviews, bad = await status("VirtualService", "reviews"), await status("DestinationRule", "bad")
            assert reviews["validationMessages"][0]["type"]["code"] == "IST0101"
            assert reviews["observedGeneration"] == 1
            (condition,) = reviews["conditions"]
            assert (condition["status"], condition["message"]) == ("True", "0/0 proxies up to date.")
            assert bad["conditions"][0]["reason"] == "Refused"
            assert bad["validationMessages"][0]["type"]["code"] == "IST0106"
            accepted = await status("GatewayClass", "istio", class_version)
            assert "Accepted" in {each["type"] for each in accepted["conditions"]}
            await eventually(lambda: not writer.statistics().waiting, what="all is written")
            before, revision = await version(), world.revision
            await apiserver.install(kinds("ServiceEntry"))
            entry = {"hosts": ["a.com"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]}
            await apiserver.apply(namespace.object(ISTIO, "ServiceEntry", "a", spec={**entry, "resolution": "DNS"}))
            key = ConfigKey("ServiceEntry", namespace.name, "a")
            await eventually(lambda: world.config.peek(key) is not None, what="the new kind is read")
            await eventually(lambda: has("ServiceEntry", "a", "conditions"), what="its status is written")
            assert await version() == before, "own writes cause no others"
            assert world.revision == revision + 1


async def test_who_may_read_secrets_is_what_its_roles_say(apiserver: ApiServer) -> None:
    rbac = "rbac.authorization.k8s.io/v1"
    async with apiserver.namespace() as namespace:
        await apiserver.apply(
            namespace.object(
                rbac, "Role", "sds", rules=[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}]
            ),
            namespace.object(
                rbac,
                "RoleBinding",
                "sds",
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sds"},
                subjects=[{"kind": "ServiceAccount", "name": "gateway", "namespace": namespace.name}],
            ),
        )
        accounts = SecretAccounts(lambda: [(namespace.name, "gateway"), (namespace.name, "web")])
        accounts.has_keys(namespace.name)

        async def changed(namespace: str) -> None: ...

        async with ApiClient(load_access(apiserver.kubeconfig())) as client, trio.open_nursery() as nursery:
            nursery.start_soon(accounts.run, client, changed)
            await eventually(lambda: bool(accounts.grants(namespace.name)), what="the answer is there")
            await eventually(lambda: repr(accounts) == "<SecretAccounts 1 of 2 allowed, 0 to ask for>", what="both are")
            assert accounts.grants(namespace.name) == (Grant(namespace.name, "gateway"),)
            nursery.cancel_scope.cancel()
