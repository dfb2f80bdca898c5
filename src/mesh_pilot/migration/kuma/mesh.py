"""All resources of a Kuma, mesh by mesh, as objects of ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.making import NETWORKING, SECURITY, make
from mesh_pilot.migration.base.names import object_name
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.migration.kuma.checks import CHECK_REASONS, LIMIT_REASONS, CheckTable, make_rate_limit
from mesh_pilot.migration.kuma.permissions import Permissions
from mesh_pilot.migration.kuma.resources import LEFT_TYPES, NEWER, SERVICE_TAG, TAKEN_TYPES, KumaResource, read_resource
from mesh_pilot.migration.kuma.routes import MadeRoute, RouteTable
from mesh_pilot.migration.kuma.services import MeshServices, label_value
from mesh_pilot.migration.kuma.settings import CONVERTERS, REASONS, Said, SettingsTable
from mesh_pilot.migration.kuma.targets import ANY, Labels, by_rank, inbound, outbound, selected_labels

_ROUTES = ("TrafficRoute", "MeshHTTPRoute", "MeshTCPRoute")
_INBOUND = ("FaultInjection", "MeshFaultInjection")
_CHECKS = ("HealthCheck", "MeshHealthCheck")
_LIMITS = ("RateLimit", "MeshRateLimit")
_PERMISSIONS = ("TrafficPermission", "MeshTrafficPermission")
_MESH_REASONS = reasons("kuma_mesh_fields")


def migrate_kuma(found: Iterable[ForeignObject], record: MigrationRecord) -> None:
    """Take the resources of a Kuma."""
    meshes: defaultdict[str, list[KumaResource]] = defaultdict(list)
    seen: dict[tuple[str, str, str], KumaResource] = {}
    for each in found:
        resource = read_resource(each, record)
        if resource is None:
            continue
        if resource.type in LEFT_TYPES:
            reason, do = LEFT_TYPES[resource.type]
            record.leave_object(each, reason, do, is_needless=not do)
        elif resource.type not in TAKEN_TYPES:
            record.leave_object(each, f"{resource.type!r} is not a type of resource that is known")
        else:
            first = seen.setdefault((resource.type, resource.mesh, resource.name), resource)
            if first is not resource:
                is_same = first.found.data == each.data
                reason = f"is there twice: the first one is taken, at {first.where}"
                record.leave_object(each, reason, "" if is_same else "keep one of them", is_needless=is_same)
                continue
            meshes[resource.mesh].append(resource)
    for mesh, resources in sorted(meshes.items()):
        _MeshConversion(record, mesh, resources, is_alone=len(meshes) == 1).run()


class _MeshConversion:
    """State: the resources of one mesh, by type; what is made of them so far."""

    def __init__(
        self, record: MigrationRecord, mesh: str, resources: Sequence[KumaResource], *, is_alone: bool
    ) -> None:
        self._record = record
        self._services = MeshServices(record, mesh, is_alone=is_alone)
        self._settings = SettingsTable()
        self._routes = RouteTable(self._services)
        self._checks = CheckTable(self._services)
        self._resources: defaultdict[str, list[KumaResource]] = defaultdict(list)
        self._has_mtls = False
        for each in resources:
            self._resources[each.type].append(each)

    def run(self) -> None:
        for type, resources in list(self._resources.items()):
            newer = NEWER.get(type)
            if newer is not None and self._resources.get(newer):
                for each in resources:
                    reason = f"the mesh has a {newer}, which takes its place"
                    self._record.leave(each.where, each.object, "", reason, is_needless=True)
                del self._resources[type]
                continue
            self._record.taken[type] += len(resources)
        for each in self._of("Dataplane"):
            self._services.put_dataplane(each)
        for each in self._of("MeshService"):
            self._services.put_mesh_service(each)
        for each in self._of("ExternalService"):
            self._services.put_external(each)
        for each in self._of("MeshExternalService"):
            self._services.put_mesh_external(each)
        self._services.finish()
        for each in self._of("Mesh"):
            self._mesh(each)
        if not self._of("Mesh"):
            mesh = self._services.mesh
            reason = "is not in the sources: whether it has mutual TLS is unknown; it is taken as if it had none"
            self._record.leave("", f"Mesh/{mesh}", "", reason, "add its resource, and migrate again")
        self._lay()
        self._make_rules()
        self._make_routes()
        self._checks.finish(self._record)
        permissions = Permissions(self._record, self._services)
        for each in self._of(*_PERMISSIONS):
            permissions.put(each)
        permissions.finish(has_mtls=self._has_mtls)

    def _of(self, *types: str) -> list[KumaResource]:
        return [each for type in types for each in self._resources.get(type, ())]

    # -- Mesh

    def _mesh(self, resource: KumaResource) -> None:
        mtls = resource.fields.part("mtls")
        enabled = mtls.text("enabledBackend")
        mode = "STRICT"
        for backend in mtls.parts("backends"):
            name, said = backend.text("name"), backend.text("mode")
            backend.text("type")
            if name == enabled:
                mode = said.upper() or mode
                self._has_mtls = True
        if enabled and not self._has_mtls:
            mtls.leave("enabledBackend", "names no backend")
        mode = mode if mode in ("STRICT", "PERMISSIVE") else "STRICT"
        namespace = self._services.namespace
        spec: Spec = {"mtls": {"mode": mode if self._has_mtls else "DISABLE"}}
        made = document(SECURITY, "PeerAuthentication", namespace, "default", spec)
        make(self._record, made, (resource.object,), resource.where)
        if not self._has_mtls:
            reason = "plain text stays plain text; delete the PeerAuthentication to have mutual TLS"
            self._record.change(resource.object, reason)
        elif mode == "PERMISSIVE":
            reason = "callers in plain text have no identity: the AuthorizationPolicies deny them, unlike Kuma's"
            self._record.change(resource.object, reason)
        outbound_part = resource.fields.part("networking").part("outbound")
        if outbound_part.flag("passthrough") is False:
            spec = {"outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}}
            made = document(NETWORKING, "Sidecar", namespace, "default", spec)
            make(self._record, made, (resource.object,), resource.where)
        resource.fields.finish(_MESH_REASONS)
        text = f"is the namespace {namespace}; a proxy of a service NAME has the account NAME and the label"
        self._record.change(resource.object, f"{text} {SERVICE_TAG}=NAME")

    # -- policies

    def _lay(self) -> None:
        # Routes first: policies for a route's subsets need them. Each resource is finished after all that read it.
        for each in self._of(*_ROUTES):
            self._routes.put(each)
            each.fields.finish(REASONS)
        laid: dict[str, list[KumaResource]] = {type: self._of(type) for type in CONVERTERS}
        for type, resources in laid.items():
            side = inbound if type in _INBOUND else outbound
            for application in by_rank(part for each in resources for part in side(each, self._services)):
                self._settings.lay(application, self._protocol)
            for each in resources:
                each.fields.finish(REASONS)
                if type in _INBOUND:
                    self._record.change(each.object, "faults are made by the clients' proxies, not by the server's")
        checks = self._of(*_CHECKS)
        for application in by_rank(part for each in checks for part in outbound(each, self._services)):
            self._checks.lay(application, self._protocol)
        for each in checks:
            each.fields.finish(CHECK_REASONS)
        for each in self._of(*_LIMITS):
            self._limit(each)
            each.fields.finish(LIMIT_REASONS)

    def _limit(self, resource: KumaResource) -> None:
        is_old = resource.fields.has("conf")
        target = None if is_old else selected_labels(resource.fields.part("targetRef"))
        for index, application in enumerate(list(inbound(resource, self._services))):
            if is_old:
                names = application.services if set(application.services) != set(self._services.names()) else (ANY,)
                for at, name in enumerate(names):
                    labels = () if name == ANY else ((SERVICE_TAG, label_value(name)),)
                    make_rate_limit(application, labels, self._services, self._record, index + at)
            elif target is not None:
                make_rate_limit(application, target[0], self._services, self._record, index)

    def _protocol(self, service: str) -> str:
        found = self._services.services.get(service)
        return found.protocol if found is not None else "HTTP"

    # -- what is made for each service

    def _make_rules(self) -> None:
        names = {service for _, service in self._settings.said} | self._routes.subsets.keys()
        for service in sorted(names | self._services.tls_of.keys()):
            for clients in self._clients(service):
                said = self._settings.of(clients, service)
                own = self._settings.said.get((clients, service), Said())
                if clients and not own.policy:
                    continue
                policy = dict(said.policy)
                made_from = list(self._settings.made_from.get(service, ()))
                made_from += self._routes.made_from.get(service, ())
                if service in self._services.tls_of:
                    policy["tls"], resource = self._services.tls_of[service]
                    made_from.append(resource.object)
                subsets = self._routes.subsets.get(service, {})
                if not policy and not subsets:
                    continue
                spec: Spec = {"host": self._services.host(service)}
                spec |= {"workloadSelector": {"matchLabels": dict(clients)}} if clients else {}
                spec |= {"trafficPolicy": policy} if policy else {}
                if subsets:
                    spec["subsets"] = [{"name": name, "labels": labels} for name, labels in sorted(subsets.items())]
                name = object_name(service, _clients_name(clients))
                self._make("DestinationRule", name, spec, made_from)

    def _make_routes(self) -> None:
        names = {service for _, service in (*self._settings.said, *self._routes.http, *self._routes.tcp)}
        for service in sorted(names):
            http: list[Spec] = []
            tcp: list[Spec] = []
            protocol = self._protocol(service)
            for clients in reversed(self._clients(service)):
                own = self._settings.said.get((clients, service), Said())
                if protocol == "TCP":
                    tcp += self._tcp_of(clients, service)
                elif not clients or own.http or self._routes.http.get((clients, service)):
                    http += self._http_of(clients, service)
            host = self._services.host(service)
            if http == [{"route": [{"destination": {"host": host}}]}]:
                http = []
            spec: Spec = {"hosts": [host], **({"http": http} if http else {}), **({"tcp": tcp} if tcp else {})}
            if not http and not tcp:
                continue
            made_from = [*self._routes.made_from.get(service, ()), *self._settings.made_from.get(service, ())]
            self._make("VirtualService", object_name(service), spec, made_from)

    def _http_of(self, clients: Labels, service: str) -> Iterator[Spec]:
        settings = self._settings.of(clients, service).http
        routes = [*self._routes.http.get((clients, service), ())]
        routes += self._routes.http.get(((), service), ()) if clients else ()
        matching = sorted((each for each in routes if each.order), key=lambda each: each.order)
        rest = [each for each in routes if not each.order]
        default = MadeRoute({"route": [{"destination": {"host": self._services.host(service)}}]})
        catch_all = any(not each.spec.get("match") for each in matching)
        for route in [*matching, *([] if catch_all else rest[:1] or [default])]:
            spec = dict(route.spec)
            if clients:
                spec["match"] = [{**match, "sourceLabels": dict(clients)} for match in spec.get("match", [{}])]
            allowed = {name: value for name, value in settings.items() if "redirect" not in spec or name == "fault"}
            yield {**({"match": spec.pop("match")} if "match" in spec else {}), **spec, **allowed}

    def _tcp_of(self, clients: Labels, service: str) -> Iterator[Spec]:
        for route in self._routes.tcp.get((clients, service), ())[:1]:
            yield {**({"match": [{"sourceLabels": dict(clients)}]} if clients else {}), **route}

    def _clients(self, service: str) -> list[Labels]:
        """The groups of clients of which something is said in particular, after all of the mesh."""
        tables: tuple[Iterable[tuple[Labels, str]], ...] = (
            self._settings.said,
            self._routes.http,
            self._routes.tcp,
        )
        return sorted({(), *(clients for table in tables for clients, name in table if name == service)})

    def _make(self, kind: str, name: str, spec: Spec, made_from: Sequence[str]) -> None:
        found = tuple(dict.fromkeys(made_from))
        every = {each.object: each.where for group in self._resources.values() for each in group}
        made = document(NETWORKING, kind, self._services.namespace, name, spec)
        make(self._record, made, found, next((every[each] for each in found if each in every), ""))


def _clients_name(clients: Labels) -> str:
    return "-".join(value for _, value in clients)
