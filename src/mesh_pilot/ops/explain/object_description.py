"""An object in words: whom it applies to, what it produces, what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from mesh_pilot.explain.plan.differences import ABSENT, differences
from mesh_pilot.explain.truth.facts import NAMED_BY_NO_RESOURCE
from mesh_pilot.istio.gateway_api.statuses import written_reference
from mesh_pilot.istio.gateway_api.values import Json
from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.mesh.selection.workloads import applies
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.events import Rejected
from mesh_pilot.model.json import as_json
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.ops.explain.description import DescribedLine, Description
from mesh_pilot.ops.explain.fields import decider
from mesh_pilot.ops.explain.owners import owner_lines
from mesh_pilot.ops.explain.policy_words import rule_words
from mesh_pilot.ops.values.objects import Product
from mesh_pilot.ops.values.truth import ObjectTruth
from mesh_pilot.world import View

SELECTING = (
    "AuthorizationPolicy",
    "PeerAuthentication",
    "RequestAuthentication",
    "Telemetry",
    "Sidecar",
    "EnvoyFilter",
    "WasmPlugin",
    "TrafficExtension",
    "LocalRateLimit",
    "GlobalRateLimit",
)
"""Kinds that select workloads."""

LONGEST = 100
"""Characters of a field's value."""

NAMED = 10
"""Proxies, services and resources that are named."""

ProxyLabels = tuple[str, str, frozenset[tuple[str, str]], bool]
"""Name, namespace, labels of a connected proxy, and whether it is a router."""


def describe_object(
    view: View, config: Config, proxies: Sequence[ProxyLabels], produced: Sequence[Product], truth: ObjectTruth
) -> Description:
    """An object that a source has, or that proxies are still served."""
    found = Description("object", str(config.key), f"{truth.state}, read from {config.origin}")
    found.facts = {
        "kind": config.key.kind,
        "namespace": config.namespace,
        "name": config.name,
        "origin": str(config.origin),
        "produces": [as_json(each) for each in produced],
        "truth": as_json(truth),
    }
    found.concerned.add(config.key)
    found.section(
        "Object", [DescribedLine(f"{config.api_version} {written_kind(config.key.kind)}", _about(view, config))]
    )
    found.kept_back(view, [(("config", *config.key), truth)])
    found.section("Served instead", list(_served_instead(config, truth)))
    found.section("Applies to", list(_applies_to(view, config, proxies)))
    found.section("Says", list(_says(view, config)))
    found.section("Produces", list(_products(produced)))
    for problem in config.warnings:
        found.warnings.append(DescribedLine(problem.reason, decider(view, FieldOfObject(config.key, problem.path))))
    for text in owner_lines(view, config):
        found.warnings.append(DescribedLine(text))
    if not produced and truth.is_in_force and config.key.kind not in NAMED_BY_NO_RESOURCE:
        found.warnings.append(DescribedLine("no connected proxy has anything that was made from it"))
    return found


def describe_refused(key: ConfigKey, rejected: Sequence[Rejected]) -> Description:
    """An object of which nothing is in force, as it is refused."""
    places = ", ".join(dict.fromkeys(str(each.origin) for each in rejected))
    found = Description("object", str(key), f"refused: nothing of it is in force; read from {places}")
    found.facts = {"kind": key.kind, "namespace": key.namespace, "name": key.name, "origin": places, "produces": []}
    for each in rejected:
        found.warnings += (DescribedLine(str(problem)) for problem in each.problems)
    return found


def _served_instead(config: Config, truth: ObjectTruth) -> Iterator[DescribedLine]:
    """The fields of the version that proxies have in place of the newest, where they have an older one."""
    if truth.has_newest:
        return
    if not isinstance(truth.served, Mapping):
        yield DescribedLine("nothing: it is left out")
        return
    found = list(differences(truth.served.get("spec"), to_json(config.spec)))
    for each in found[:NAMED]:
        older, newest = ("nothing" if side is ABSENT else json.dumps(side) for side in (each.before, each.after))
        yield DescribedLine(f"spec.{each.path}: {older[:LONGEST]}, not {newest[:LONGEST]}")
    if len(found) > NAMED:
        yield DescribedLine(f"and {len(found) - NAMED} more fields")


def status_lines(status: Json) -> Iterator[DescribedLine]:
    """The conditions of an object of the Gateway API, those of its listeners and parents as well."""
    for address in status.get("addresses", ()):
        yield DescribedLine(f"address {address['value']}")
    yield from _condition_lines("", status.get("conditions", ()))
    for listener in status.get("listeners", ()):
        routes = counted(listener["attachedRoutes"], "route")
        yield from _condition_lines(f"listener {listener['name']} ({routes}): ", listener["conditions"])
    for parent in status.get("parents", ()):
        yield from _condition_lines(f"at {written_reference(parent['parentRef'])}: ", parent["conditions"])
    for ancestor in status.get("ancestors", ()):
        yield from _condition_lines(f"for {written_reference(ancestor['ancestorRef'])}: ", ancestor["conditions"])


def _condition_lines(prefix: str, conditions: Sequence[Json]) -> Iterator[DescribedLine]:
    for each in conditions:
        yield DescribedLine(f"{prefix}{each['type']} {each['status']}: {each['message']} ({each['reason']})")


def _about(view: View, config: Config) -> Any:
    return decider(view, FieldOfObject(config.key))


def _applies_to(view: View, config: Config, proxies: Sequence[ProxyLabels]) -> Iterator[DescribedLine]:
    # Each kind chooses in its own way: workloads by labels, routers by a Gateway's selector, hosts by names.
    kind, spec = config.key.kind, config.spec
    if kind in SELECTING:
        is_root = config.namespace == view.root_namespace
        chosen = [
            name
            for name, namespace, labels, _ in proxies
            if (namespace == config.namespace or is_root) and applies(config, namespace, labels)
        ]
        yield _named("connected proxy", chosen, "connected proxies")
    elif kind == "Gateway":
        routers = (p for p in proxies if p[3])
        yield _named("connected gateway", [name for name, _, labels, _ in routers if spec.selector.items() <= labels])
    elif kind in ("VirtualService", "DestinationRule"):
        hosts = list(spec.hosts) if kind == "VirtualService" else [spec.host]
        for host in hosts:
            yield DescribedLine(_host_text(view, host, config.namespace))
        if kind == "VirtualService":
            yield DescribedLine(f"gateways {', '.join(spec.gateways) or 'mesh (all sidecars)'}")
    elif kind == "ServiceEntry":
        for host in spec.hosts:
            count = len(view.endpoints(ServiceKey(host.lower(), config.namespace)))
            yield DescribedLine(f"{host}: {counted(count, 'endpoint')}")


def _host_text(view: View, host: str, namespace: str) -> str:
    full = view.full_host(host, namespace)
    if full.startswith("*"):
        return f"every service {full}"
    services = view.services_named(full)
    if not services:
        return f"{full}: no such service"
    return f"{full}: service of {services[0].registry}, namespace {services[0].namespace}"


def _named(what: str, names: Sequence[str], many: str = "") -> DescribedLine:
    if not names:
        return DescribedLine(f"no {what}")
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return DescribedLine(f"{counted(len(names), what, many)}: {', '.join(sorted(names)[:NAMED])}{more}")


def _says(view: View, config: Config) -> Iterator[DescribedLine]:
    # Only kinds whose YAML hides what it says behind indexes and defaults are told; the others are read as they are.
    key, spec = config.key, config.spec
    if key.kind == "AuthorizationPolicy":
        for index, rule in enumerate(spec.rules):
            yield DescribedLine(
                f"{spec.action.name} {rule_words(rule)}", decider(view, FieldOfObject(key, f"spec.rules[{index}]"))
            )
        if not spec.rules:
            yield DescribedLine(f"{spec.action.name} with no rules: it matches nothing")
    elif key.kind == "VirtualService":
        for index, rule in enumerate(islice(spec.http, NAMED)):
            field = FieldOfObject(key, f"spec.http[{index}]")
            yield DescribedLine(
                f"http[{index}] {rule.name}: {_rule_text(rule)}".replace(" :", ":"), decider(view, field)
            )
        if len(spec.http) > NAMED:
            yield DescribedLine(f"and {len(spec.http) - NAMED} more HTTP rules")
        for name in ("tls", "tcp"):
            if rules := getattr(spec, name):
                yield DescribedLine(counted(len(rules), f"{name.upper()} rule"))
    elif key.kind == "DestinationRule":
        for index, subset in enumerate(spec.subsets):
            labels = ", ".join(f"{k}={v}" for k, v in subset.labels.items()) or "any labels"
            yield DescribedLine(
                f"subset {subset.name}: {labels}", decider(view, FieldOfObject(key, f"spec.subsets[{index}]"))
            )
    elif key.kind == "Gateway":
        for index, server in enumerate(spec.servers):
            port = server.port
            text = f"{port.protocol} port {port.number} for {', '.join(server.hosts)}" if port else "no port"
            yield DescribedLine(text, decider(view, FieldOfObject(key, f"spec.servers[{index}]")))


def _rule_text(rule: Any) -> str:
    matches = f"{counted(len(rule.match), 'match', 'matches')}" if rule.match else "every request"
    if rule.redirect is not None:
        return f"{matches}, redirected"
    if rule.direct_response is not None:
        return f"{matches}, answered {rule.direct_response.status}"
    if rule.delegate is not None:
        return f"{matches}, handed to VirtualService {rule.delegate.name}"
    parts = []
    for route in rule.route:
        if (to := route.destination) is not None:
            port = f":{to.port.number}" if to.port is not None else ""
            weight = f" ({route.weight} %)" if len(rule.route) > 1 else ""
            parts.append(f"{to.host}{port}{f' subset {to.subset}' if to.subset else ''}{weight}")
    return f"{matches}, to {', '.join(parts) or 'nothing'}"


def _products(produced: Sequence[Product]) -> Iterator[DescribedLine]:
    for each in produced[:NAMED]:
        yield DescribedLine(
            f"{each.type} {each.name}, at {counted(each.proxies, 'proxy', 'proxies')}, such as {each.first}"
        )
    if len(produced) > NAMED:
        yield DescribedLine(f"and {len(produced) - NAMED} more resources")
