"""The statuses of Gateways and ListenerSets: partial ones with the state of the Gateway's services and its routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.conditions import Conditions, Fault, human_join
from mesh_pilot.istio.gateway_api.gateways import HOSTNAME, IP_ADDRESS, PartialStatus, is_managed
from mesh_pilot.istio.gateway_api.statuses import NO_RESOURCES
from mesh_pilot.istio.gateway_api.values import Json, Objects, StatusCondition
from mesh_pilot.model.config import Config
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import Endpoint, Service

ADDRESS_TYPE = "networking.istio.io/address-type"
"""Annotation of a Gateway: the type of the addresses to report."""
MANAGED_LABEL = "gateway.istio.io/managed"
"""Label of services that a controller made for a Gateway."""


_ACCEPTED = StatusCondition("Accepted", True, "Accepted", "Resource accepted")
_PROGRAMMED = StatusCondition("Programmed", True, "Programmed", "Resource programmed")
_RESOLVED = StatusCondition("ResolvedRefs", True, "ResolvedRefs", "All references resolved")

_FOR_ROUTERS = "Resource programmed for the routers of "
"""Begins the message of ``Programmed`` for a Gateway without a service, whose routers the World does not know."""


@attrs.frozen
class GatewayAddresses:
    """The services of a Gateway, as far as they are there and have endpoints on its ports."""

    assigned: tuple[str, ...] = ()
    """``host:port``."""
    ips: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    """GatewayAddresses for clients outside the cluster."""
    warnings: tuple[str, ...] = ()
    usable: bool = True
    """False if a service or a port of it is missing, True if it only lacks endpoints."""


def resolve_addresses(hosts: Iterable[str], ports: Iterable[int], namespace: str, objects: Objects) -> GatewayAddresses:
    """The services of these hosts, for the servers of a Gateway of a namespace."""
    assigned: set[str] = set()
    ips: set[str] = set()
    external: set[str] = set()
    warnings: list[str] = []
    usable = True
    wanted = sorted(set(ports))
    for host in hosts:
        service = objects.service(host, namespace)
        if service is None:
            warnings.append(f'hostname "{host}" not found')
            usable = False
            continue
        if service.namespace != namespace and (service.namespaced_name or service.declared_by_users):
            found = f'"{service.namespace}"'
            text = f'hostname "{host}" not found in namespace "{namespace}", but it was found in namespace(s) {found}'
            warnings.append(text)
            usable = False
            continue
        endpoints = objects.endpoints(service.key)
        for port in wanted:
            if _serves(service, port, endpoints):
                assigned.add(f"{host}:{port}")
                ips.update(service.addresses)
                external.update(service.external_addresses)
                continue
            warning, is_usable = _missing(service, port, endpoints)
            warnings += (warning,) if warning else ()
            usable = usable and is_usable
    return GatewayAddresses(
        tuple(sorted(assigned)), tuple(sorted(ips)), tuple(sorted(external)), tuple(sorted(warnings)), usable
    )


def _serves(service: Service, number: int, endpoints: Iterable[Endpoint]) -> bool:
    port = service.port(number)
    return port is not None and any(e.service_port == port.name for e in endpoints)


def _missing(service: Service, port: int, endpoints: tuple[Endpoint, ...]) -> tuple[str, bool]:
    """A warning of a port without endpoints, and False if it will not be used as things are."""
    if not endpoints:
        return f'no instances found for hostname "{service.host}"', True
    names = {e.service_port for e in endpoints if e.port == port}
    if hints := sorted(str(p.number) for p in service.ports if p.name in names):
        hint = "(hint: the service port should be specified, not the workload port."
        hint += f" Did you mean one of these ports: [{' '.join(hints)}]?)"
        return f'port {port} not found for hostname "{service.host}" {hint}', False
    if MANAGED_LABEL in service.labels and service.port(port) is not None:
        return "", True
    return f'port {port} not found for hostname "{service.host}"', False


def gateway_status(gateway: Config, partial: PartialStatus, routes: Mapping[str, int], objects: Objects) -> Json:
    """The status of a Gateway. ``routes``: the number of attached routes by listener."""
    spec: api.GatewaySpec = gateway.spec
    if partial.is_remote:
        return _remote_status(spec)
    conditions = Conditions((_ACCEPTED, _PROGRAMMED, _RESOLVED))
    if partial.fault is not None:
        conditions.fail("Accepted", partial.fault)
    elif partial.valid < len(spec.listeners):
        if partial.valid:
            text = "One or more of the Gateway's listeners are invalid"
            conditions.put(StatusCondition("Accepted", True, "ListenersNotValid", text))
        else:
            text = "None of the Gateway's listeners are valid"
            conditions.fail("Accepted", Fault("ListenersNotValid", text))
    if partial.client_fault is not None:
        conditions.fail("ResolvedRefs", partial.client_fault)
    if _is_insecure(spec):
        text = "Gateway is operating in AllowInsecureFallback mode for frontend validation"
        conditions.put(StatusCondition("InsecureFrontendValidationMode", True, "ConfigurationChanged", text))
    found = resolve_addresses(partial.services, partial.ports, gateway.namespace, objects)
    _program(conditions, gateway, partial, found, objects)
    status: dict[str, Any] = {}
    if addresses := _reported(gateway, found):
        status["addresses"] = addresses
    if partial.sets:
        status["attachedListenerSets"] = partial.sets
    status["conditions"] = conditions.to_json()
    return status | _listeners(partial, routes)


def without_router(status: Json) -> Json:
    """The status of a Gateway or ListenerSet that no connected router has: not programmed, if no service has it."""
    return {**status, "conditions": [_without_router(each) for each in status.get("conditions", ())]}


def _without_router(condition: Json) -> Json:
    routers = str(condition["message"])
    if not routers.startswith(_FOR_ROUTERS):
        return condition
    text = f"No router of {routers.removeprefix(_FOR_ROUTERS)} is connected"
    return StatusCondition("Programmed", False, NO_RESOURCES, text).to_json()


def set_status(gateway: Config, partial: PartialStatus, routes: Mapping[str, int], objects: Objects) -> Json:
    """The status of a ListenerSet."""
    if partial.refused:
        refused = [StatusCondition(type, False, "NotAllowed", partial.refused) for type in ("Accepted", "Programmed")]
        return {"conditions": [condition.to_json() for condition in refused]}
    conditions = Conditions((_ACCEPTED, _PROGRAMMED))
    invalid = Fault("ListenersNotValid", "None of the ListenerSet's listeners are valid") if not partial.valid else None
    if partial.fault is not None:
        conditions.fail("Accepted", Fault(partial.fault.reason, f"Parent not accepted: {partial.fault.message}"))
    elif invalid is not None:
        conditions.fail("Accepted", invalid)
    found = resolve_addresses(partial.services, partial.ports, gateway.namespace, objects)
    _program(conditions, gateway, partial, found, objects)
    if invalid is not None:
        conditions.fail("Programmed", invalid)
    return {"conditions": conditions.to_json(), **_listeners(partial, routes)}


def _listeners(partial: PartialStatus, routes: Mapping[str, int]) -> dict[str, list[Json]]:
    reported: list[Json] = [
        {
            "attachedRoutes": routes.get(report.name, 0),
            "conditions": [condition.to_json() for condition in report.conditions],
            "name": report.name,
            "supportedKinds": [{"group": group, "kind": kind} for group, kind in report.kinds],
        }
        for report in partial.listeners
    ]
    return {"listeners": reported} if reported else {}


def _program(
    conditions: Conditions, gateway: Config, partial: PartialStatus, found: GatewayAddresses, objects: Objects
) -> None:
    """Set the condition ``Programmed``, which says which services have the Gateway."""
    assigned = human_join(list(found.assigned))
    if assigned:
        text = f"Resource programmed, assigned to service(s) {assigned}"
        conditions.put(StatusCondition("Programmed", True, "Programmed", text))
    if not partial.services:
        conditions.fail("Programmed", Fault("UnsupportedAddress", "Failed to assign to any requested addresses"))
        return
    has_routers = is_managed(gateway.spec) and objects.names_routers(gateway)
    # Whoever asks for an address waits for it there; a service that is missing is told first, because it may have it.
    if (not found.warnings or has_routers) and (address := _unusable(gateway.spec, found)):
        where = "its service has another" if found.assigned else "its routers listen on all of theirs"
        text = f"spec.addresses has {address}, and nothing assigns or binds it: {where}"
        conditions.fail("Programmed", Fault("AddressNotUsable", text))
        return
    if not found.warnings:
        return
    if has_routers:
        text = f"{_FOR_ROUTERS}namespace {gateway.namespace} with its name as a label"
        conditions.put(StatusCondition("Programmed", True, "Programmed", text))
        return
    warnings = "; ".join(found.warnings)
    if assigned:
        text = f"Assigned to service(s) {assigned}, but failed to assign to all requested addresses: {warnings}"
    else:
        text = f"Failed to assign to any requested addresses: {warnings}"
    conditions.fail("Programmed", Fault("AddressNotAssigned" if found.usable else "AddressNotUsable", text))


def _unusable(spec: api.GatewaySpec, found: GatewayAddresses) -> str:
    """The one address that a Gateway wants and its services do not have; empty: none."""
    wanted = spec.addresses[0].value if is_managed(spec) and spec.addresses else None
    return wanted if wanted and wanted.lower() not in (*found.ips, *found.external) else ""


def _reported(gateway: Config, found: GatewayAddresses) -> list[Json]:
    values = found.external
    if not values:
        wanted = gateway.annotations.get(ADDRESS_TYPE, HOSTNAME)
        hosts = tuple(dict.fromkeys(assigned.rpartition(":")[0] for assigned in found.assigned))
        values = (found.ips if wanted != HOSTNAME else ()) + (hosts if wanted != IP_ADDRESS else ())
    return [{"type": IP_ADDRESS if is_ip(value) else HOSTNAME, "value": value} for value in values]


def _is_insecure(spec: api.GatewaySpec) -> bool:
    frontend = spec.tls.frontend if spec.tls is not None else None
    if frontend is None:
        return False
    configured = [frontend.default, *(each.tls for each in frontend.per_port)]
    checks = [each.validation for each in configured if each is not None]
    return any(check is not None and check.mode == "AllowInsecureFallback" for check in checks)


def _remote_status(spec: api.GatewaySpec) -> Json:
    text = "This Gateway is remote; Istio will not program it"
    conditions = Conditions((_ACCEPTED, attrs.evolve(_PROGRAMMED, message=text)))
    addresses = [{"type": a.type or IP_ADDRESS, "value": a.value} for a in spec.addresses]
    return {
        **({"addresses": addresses} if addresses else {}),
        "conditions": conditions.to_json(),
    }
