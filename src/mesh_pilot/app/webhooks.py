"""The webhooks of a control plane, assembled: the app, its TLS, and the leader's tasks at the API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.app.identity import Identities
from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.kubernetes.apiserver import ApiClient
from mesh_pilot.kubernetes.webhooks.app import MAX_BODY, WebhookApp
from mesh_pilot.kubernetes.webhooks.ca_bundles import CaBundleWriter
from mesh_pilot.kubernetes.webhooks.counts import BundleCounts, InjectionCounts, RootCertificateCounts, ValidationCounts
from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettingsError
from mesh_pilot.kubernetes.webhooks.injection.context import InjectionTemplateError
from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionMesh
from mesh_pilot.kubernetes.webhooks.root_certificates import RootCertificates
from mesh_pilot.kubernetes.webhooks.sidecars import MeshOf, SidecarSettingsFile
from mesh_pilot.mesh.proxy.agent_config import ANNOTATION, AgentFacts, AgentKey, agent_config
from mesh_pilot.net.http.connection import HttpLimits
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import server_tls_in_memory
from mesh_pilot.replicas.election.base import Election
from mesh_pilot.world import World

LIMITS = HttpLimits(connections=100, body_bytes=MAX_BODY)


@attrs.frozen(eq=False)
class Webhooks:
    """The parts of the webhooks; implements ``WebhookState``."""

    app: WebhookApp
    server: HttpServer
    file: SidecarSettingsFile
    bundles: CaBundleWriter | None
    """None without an API server that they could be written to."""
    roots: RootCertificates | None

    async def run(self) -> None:
        """Follow the file with the settings of injection."""
        await self.file.run()

    def validations(self) -> ValidationCounts:
        return self.app.validations()

    def injections(self) -> InjectionCounts:
        return self.app.injections()

    def bundle_counts(self) -> BundleCounts | None:
        return self.bundles.counts() if self.bundles is not None else None

    def root_counts(self) -> RootCertificateCounts | None:
        return self.roots.counts() if self.roots is not None else None


def webhooks_of(
    settings: Settings,
    identities: Identities,
    world: World,
    election: Election,
    *,
    is_ready: Callable[[], bool],
) -> Webhooks | None:
    """The webhooks; None if they are off. Raises StartError for settings of injection that cannot be used."""
    own = settings.webhooks
    if own is None or identities.webhook_server is None:
        return None
    try:
        file = SidecarSettingsFile(own.injection, own.injection_file)
    except (InjectionSettingsError, InjectionTemplateError) as error:
        raise StartError(f"--injection-template: {error}") from None
    app = WebhookApp(lambda: file.injector, mesh_of(world), is_ready=is_ready)
    tls = server_tls_in_memory(identities.webhook_server.shown, require_client_certificate=False)
    server = HttpServer(app, port="webhooks", limits=LIMITS, tls=tls)
    bundles = roots = None
    if (access := own.access) is not None:

        def client() -> ApiClient:
            return ApiClient(access)

        def own_roots() -> bytes:
            return b"".join(identities.trust.own().roots)

        bundles = CaBundleWriter(client, own_roots, revision=own.revision, namespace=settings.namespace)
        name = own.injection.values["global"]["trustBundleName"]
        roots = RootCertificates(client, own_roots, name=name)
        election.while_leading("webhook configurations", bundles.run)
        election.while_leading("root certificates", roots.run)
        identities.trust.on_change(bundles.roots_changed)
        identities.trust.on_change(roots.roots_changed)
    return Webhooks(app, server, file, bundles, roots)


def mesh_of(world: World) -> MeshOf:
    """The mesh as Pods see it, from the World as it is when it is asked."""
    latest: list[tuple[MeshConfig, Mapping[str, object]]] = []

    def found(namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> InjectionMesh:
        mesh = world.mesh.peek(())
        if not latest or latest[0][0] is not mesh:
            latest[:] = [(mesh, to_json(mesh))]
        key = AgentKey(namespace, frozenset(labels.items()), AgentFacts(annotation=annotations.get(ANNOTATION, "")))
        return InjectionMesh(mesh=latest[0][1], proxy_config=to_json(agent_config.compute(world.view, key)))

    return found
