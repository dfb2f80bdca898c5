"""samples/kubernetes on a real API server: it takes the objects, and the plane needs exactly the rights in them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
import trio
import yaml
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.identity.authority.material import ROOTS
from mesh_pilot.istio.kinds import KINDS
from tests.support.apiserver import ApiServer
from tests.support.authorities import cacerts as authority_files
from tests.support.authorities import make_ca, write_files
from tests.support.envoy import eventually
from tests.support.pilot import ADS, request
from tests.support.plane_process import PlaneProcess
from tools.gen_crds import definitions, istio_kinds

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "kubernetes"
NAMESPACE, ACCOUNT = "istio-system", "mesh-pilot"
WHO = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [WHO]}, {"level": "None"}],
}
EDGE = {
    "gatewayClassName": "istio",
    "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Same"}}}],
}
BALANCER = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "istio-ingressgateway", "namespace": NAMESPACE},
    "spec": {"type": "LoadBalancer", "selector": {"istio": "ingressgateway"}, "ports": [{"port": 80}]},
}
RULES = [
    {
        "host": "a.example",
        "http": {
            "paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}
            ]
        },
    }
]


@attrs.frozen
class Use:
    """Something that an account asked to do, or may do."""

    verb: str
    group: str
    resource: str
    """With its subresource, as in rules of RBAC."""


RARE = {
    *(Use("get", group, "*") for group in ("gateway.networking.k8s.io", "networking.k8s.io")),
    Use("create", "authorization.k8s.io", "subjectaccessreviews"),
    Use("create", "", "events"),
}
"""Rights that are used where another writes a status at the same moment, where a gateway asks for a key, and where
objects are held."""


@attrs.define(eq=False)
class Sample:
    """The sample on a server, and a plane as its Deployment runs it."""

    server: ApiServer
    objects: list[dict[str, Any]]
    plane: PlaneProcess
    secure: int
    audit: Path
    authority: Path

    def uses(self) -> Iterator[tuple[Use, bool]]:
        """All that the plane has asked for so far, and whether it was allowed."""
        for line in self.audit.read_text().splitlines():
            event = json.loads(line)
            ref = event.get("objectRef")
            if ref is not None:
                resource = "/".join(filter(None, (ref["resource"], ref.get("subresource", ""))))
                allowed = event["annotations"]["authorization.k8s.io/decision"] == "allow"
                yield Use(event["verb"], ref.get("apiGroup", ""), resource), allowed

    def rights(self) -> Iterator[Use]:
        """All that the roles of the sample allow; ``*`` stands for any resource."""
        for role in self.objects:
            if role["kind"] in ("Role", "ClusterRole"):
                for rule in role["rules"]:
                    for group in rule["apiGroups"]:
                        for resource in rule["resources"]:
                            yield from (Use(verb, group, resource) for verb in rule["verbs"])

    def call(self, token: str) -> None:
        """An xDS stream of a workload that shows its token."""
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes())
        with grpc.secure_channel(f"localhost:{self.secure}", credentials) as channel:
            stream = channel.stream_stream(ADS)
            first = request("type.googleapis.com/envoy.config.cluster.v3.Cluster")
            answers = stream(iter([first]), metadata=[("authorization", f"Bearer {token}")], timeout=30)
            assert discovery_pb2.DiscoveryResponse.FromString(next(answers)).version_info


@asynccontextmanager
async def sample(folder: Path, ports: list[int]) -> AsyncIterator[Sample]:
    grpc_port, http, monitoring, secure, https = ports
    policy, audit = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={audit}", "--audit-log-mode=blocking")
    server = ApiServer(folder / "server", flags=flags)
    cacerts = folder / "cacerts"
    try:
        await trio.to_thread.run_sync(server.start)
        gateway_api = [kind for kind in KINDS.values() if kind.group == "gateway.networking.k8s.io"]
        await server.install(definitions([*istio_kinds(), *gateway_api]))
        await server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        files = sorted(path for path in SAMPLES.glob("*.yaml") if path.name != "crds.yaml")
        objects = [found for path in files for found in yaml.safe_load_all(path.read_text()) if found]
        await server.apply(*objects)
        kubeconfig = server.kubeconfig(ACCOUNT, token=await server.account_token(NAMESPACE, ACCOUNT))
        (deployment,) = (found for found in objects if found["kind"] == "Deployment")
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        here = {"/etc/cacerts": str(cacerts), "/var/lib/mesh-pilot": str(folder / "state")}
        here |= {":15012": f"127.0.0.1:{secure}", ":15017": f"127.0.0.1:{https}", ":15014": f"127.0.0.1:{monitoring}"}
        given = [_here(argument, here) for argument in arguments[1:]]
        access = (f"--kubeconfig={kubeconfig}", f"--kubernetes-kubeconfig={kubeconfig}")
        plane = PlaneProcess(folder / "plane.log", [grpc_port, http, monitoring], *given, *access)
        write_files(cacerts, authority_files(make_ca("root")))
        try:
            await plane.start()
            yield Sample(server, objects, plane, secure, audit, cacerts / ROOTS)
        finally:
            await plane.terminate()
    finally:
        server.kill(etcd=True)


def _here(argument: str, here: Mapping[str, str]) -> str:
    """An argument of the Deployment, with the places of this test."""
    flag, is_given, value = argument.partition("=")
    return f"{flag}={here.get(value, value)}" if is_given else argument


async def test_the_plane_works_with_the_rights_of_the_sample_and_needs_them_all(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with sample(tmp_path, free_ports(5)) as made:
        server = made.server
        async with server.namespace("shop") as shop:
            await server.apply(
                shop.object("gateway.networking.k8s.io/v1", "Gateway", "edge", spec=EDGE),
                shop.object(
                    "networking.k8s.io/v1",
                    "Ingress",
                    "web",
                    annotations={"kubernetes.io/ingress.class": "istio"},
                    spec={"rules": RULES},
                ),
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web", "namespace": "default"}},
            )
            token = await server.account_token("default", "web", audiences=["istio-ca"])
            await trio.to_thread.run_sync(made.call, token)
            path = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/edge"

            (service,) = await server.apply(BALANCER)
            await server.set_status({**service, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}})
            roots = shop.object("v1", "ConfigMap", "istio-ca-root-cert", data={"root-cert.pem": "another"})
            await server.apply(roots)  # it is put back

            async def has_status() -> bool:
                found = await server.ask("GET", path)
                return "conditions" in found.get("status", {})

            await eventually(has_status, what="the Gateway has a status")

            def unused() -> set[Use]:
                used = {use for use, allowed in made.uses() if allowed}
                needed = set(made.rights()) - RARE
                return {right for right in needed if not any(_is_of(use, right) for use in used)}

            with trio.move_on_after(30):
                while unused():  # noqa: ASYNC110  # the log of the server is a file
                    await trio.sleep(0.2)
            assert unused() == set()
        assert {use for use, allowed in made.uses() if not allowed} == set()


def _is_of(use: Use, right: Use) -> bool:
    """One of all of a group is used if one of its kinds is; one to list with watching, by which new servers list."""
    verb = "watch" if right.verb == "list" else right.verb
    if (use.verb, use.group) != (verb, right.group):
        return False
    name, _, part = right.resource.partition("/")
    return use.resource == right.resource or (name == "*" and use.resource.partition("/")[2] == part)


@pytest.mark.parametrize(
    ("verb", "group", "resource"),
    [
        ("create", "", "secrets"),
        ("delete", "", "configmaps"),
        ("create", "", "pods"),
        ("create", "", "pods/exec"),
        ("create", "", "serviceaccounts/token"),
        ("impersonate", "", "users"),
        ("update", "apps", "deployments"),
        ("delete", "networking.istio.io", "virtualservices"),
        ("update", "networking.istio.io", "gateways"),
        ("create", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("patch", "rbac.authorization.k8s.io", "clusterroles"),
        ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ],
)
async def test_nothing_else_is_allowed(apiserver: ApiServer, verb: str, group: str, resource: str) -> None:
    await apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    found = yaml.safe_load_all((SAMPLES / "mesh-pilot.yaml").read_text())
    await apiserver.apply(
        *(each for each in found if each["apiVersion"].startswith("rbac.") or each["kind"] == "ServiceAccount")
    )
    name, _, part = resource.partition("/")
    about = {"verb": verb, "group": group, "resource": name, "subresource": part, "namespace": NAMESPACE}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": WHO,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": about,
        },
    }
    answer = await apiserver.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is False
