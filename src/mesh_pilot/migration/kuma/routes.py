"""Routes of Kuma as routes of a VirtualService: TrafficRoute, MeshHTTPRoute, MeshTCPRoute.

Kuma takes the most specific match of all resources that are about a service; a VirtualService takes the first in its
list. So each match becomes its own route with Kuma's rank (``MadeRoute.order``), and the list is sorted when all
resources are read. A rule with several matches can't stay one route: a match of another resource may belong between
them. Kuma's prefixes end at a slash, so that one is two matches here, the path itself and all below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.istio.rules.substitution import header_format_reason
from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.names import object_name
from mesh_pilot.migration.base.record import Spec
from mesh_pilot.migration.kuma.resources import SERVICE_TAG, KumaResource
from mesh_pilot.migration.kuma.services import MeshServices, label_value
from mesh_pilot.migration.kuma.settings import kept
from mesh_pilot.migration.kuma.targets import ANY, Labels, matches, named_services, selected_labels

_BACKENDS = ("", "MeshService", "MeshServiceSubset", "MeshExternalService")
_KINDS = {"Exact": "exact", "PathPrefix": "prefix", "Prefix": "prefix", "RegularExpression": "regex"}


@attrs.frozen
class MadeRoute:
    """A route: of HTTP, or of TCP where it has no match and no actions."""

    spec: Spec = attrs.field(hash=False)
    """Without what policies say for the service."""
    order: tuple[int, ...] = ()
    """Kuma's order of matches: the least counts first; empty: it matches everything."""


@attrs.define
class RouteTable:
    """State: routes by clients and service; the subsets that they name, by service."""

    services: MeshServices
    http: dict[tuple[Labels, str], list[MadeRoute]] = attrs.field(factory=dict)
    tcp: dict[tuple[Labels, str], list[Spec]] = attrs.field(factory=dict)
    subsets: dict[str, dict[str, dict[str, str]]] = attrs.field(factory=dict)
    made_from: dict[str, dict[str, None]] = attrs.field(factory=dict)

    def put(self, resource: KumaResource) -> None:
        """Take a resource with routes."""
        match resource.type:
            case "TrafficRoute":
                self._put_old(resource)
            case "MeshHTTPRoute":
                self._put_http(resource)
            case _:
                self._put_tcp(resource)

    # -- MeshHTTPRoute

    def _put_http(self, resource: KumaResource) -> None:
        clients = selected_labels(resource.fields.part("targetRef"))
        for item in resource.fields.parts("to"):
            if item.has("hostnames"):
                item.leave("hostnames", "a route of a gateway has hosts", "write a VirtualService with gateways")
            named = named_services(item.part("targetRef"), self.services)
            rules = item.parts("rules")
            if clients is None or named is None:
                for rule in rules:
                    _pass_over(rule)
                continue
            for service in named[0]:
                made = [route for rule in rules for route in self._http_rule(rule, service)]
                if made:
                    self.http.setdefault((clients[0], service), []).extend(made)
                    self._note(service, resource)

    def _http_rule(self, rule: ForeignFields, service: str) -> Iterator[MadeRoute]:
        conf = rule.part("default")
        filters = conf.parts("filters")
        destinations = self._destinations(conf, "backendRefs", service)
        if destinations is None:
            _pass_over(rule)
            rule.leave("", "sends requests where nothing can be named; the route is not taken", "write the route")
            return
        for match in rule.parts("matches") or [ForeignFields(None, lambda *_: None)]:
            path, order = _path(match)
            common = _common_match(match)
            if common is None or path is None:
                continue
            for uri, is_prefix in path:
                actions = self._filters(filters, uri, service, is_prefix=is_prefix)
                spec: Spec = {"match": [{**({"uri": uri} if uri else {}), **common}]} if uri or common else {}
                if "redirect" not in actions:
                    spec["route"] = destinations
                yield MadeRoute({**spec, **actions}, (*order, *_rest_order(common)))

    def _filters(self, filters: list[ForeignFields], uri: Spec, service: str, *, is_prefix: bool) -> Spec:
        made: Spec = {}
        for each in filters:
            match each.text("type"):
                case "RequestHeaderModifier":
                    _headers(made, "request", each.part("requestHeaderModifier"))
                case "ResponseHeaderModifier":
                    _headers(made, "response", each.part("responseHeaderModifier"))
                case "URLRewrite":
                    rewrite = _rewrite(each.part("urlRewrite"), uri, is_prefix=is_prefix)
                    made |= {"rewrite": rewrite} if rewrite else {}
                case "RequestRedirect":
                    made["redirect"] = _redirect(each.part("requestRedirect"), uri)
                case "RequestMirror":
                    mirror = each.part("requestMirror")
                    share = mirror.percent("percentage")
                    target = self._destination(mirror.part("backendRef"), service)
                    if target is not None:
                        mirrors = made.setdefault("mirrors", [])
                        mirrors.append({"destination": target, **kept(percentage=kept(value=share))})
                case other:
                    each.leave("type", f"{other!r} is not a filter that is known")
        return made

    # -- MeshTCPRoute

    def _put_tcp(self, resource: KumaResource) -> None:
        clients = selected_labels(resource.fields.part("targetRef"))
        for item in resource.fields.parts("to"):
            named = named_services(item.part("targetRef"), self.services)
            rules = item.parts("rules")
            for rule in rules:
                conf = rule.part("default")
                for service in named[0] if named is not None and clients is not None else ():
                    destinations = self._destinations(conf, "backendRefs", service)
                    if destinations is not None and clients is not None:
                        self.tcp.setdefault((clients[0], service), []).append({"route": destinations})
                        self._note(service, resource)
                if named is None or clients is None:
                    _pass_over(rule)

    # -- TrafficRoute

    def _put_old(self, resource: KumaResource) -> None:
        conf = resource.fields.part("conf")
        if conf.has("loadBalancer"):
            conf.leave("loadBalancer", "a route has no load balancer", "write a DestinationRule")
        sources = list(matches(resource.fields, "sources")) or [{}]
        for destination in list(matches(resource.fields, "destinations")) or [{}]:
            service = destination.get(SERVICE_TAG, ANY)
            if service == ANY:
                self._put_default(resource, conf)
                continue
            if destination.keys() - {SERVICE_TAG}:
                resource.fields.leave("destinations", "a VirtualService is for all instances of a service")
            for source in sources:
                labels = tuple(sorted((k, v) for k, v in source.items() if v != ANY))
                self._put_old_routes(labels, service, conf)
                self._note(service, resource)

    def _put_default(self, resource: KumaResource, conf: ForeignFields) -> None:
        """The route of everything to where it goes anyway, which every mesh has."""
        target = conf.text_map("destination")
        splits = conf.parts("split")
        for split in splits:
            split.integer("weight")
            target = target or split.text_map("destination")
        if set(target) - {SERVICE_TAG} or target.get(SERVICE_TAG, ANY) != ANY or conf.has("http"):
            reason = "is a route for all services at once"
            resource.fields.leave("conf", reason, "write a VirtualService for each")
        _pass_over(conf)

    def _put_old_routes(self, clients: Labels, service: str, conf: ForeignFields) -> None:
        routes = self.http.setdefault((clients, service), [])
        for index, each in enumerate(conf.parts("http")):
            match = each.part("match")
            spec: Spec = {}
            if found := _old_match(match):
                spec["match"] = [found]
            targets = self._old_targets(each, service)
            modify = each.part("modify")
            spec |= _old_changes(modify, found.get("uri", {}))
            if targets is None:
                each.leave("", "sends requests where nothing can be named; the route is not taken", "write the route")
                continue
            routes.append(MadeRoute({**spec, "route": targets}, (-1, index)))
        targets = self._old_targets(conf, service)
        if targets is not None:
            routes.append(MadeRoute({"route": targets}))
            self.tcp.setdefault((clients, service), []).append({"route": targets})

    def _old_targets(self, fields: ForeignFields, service: str) -> list[Spec] | None:
        whole = fields.text_map("destination")
        splits: list[tuple[Mapping[str, str], int | None]] = []
        for split in fields.parts("split"):
            weight = split.integer("weight")
            splits.append((split.text_map("destination"), weight))
        found = splits or ([(whole, None)] if whole else [])
        if not found:
            return None
        total = sum(weight or 0 for _, weight in found)
        targets = [(self._tagged(tags, service), weight) for tags, weight in found]
        return _weighted([(each, weight) for each, weight in targets if total == 0 or weight])

    # -- destinations

    def _destinations(self, conf: ForeignFields, name: str, service: str) -> list[Spec] | None:
        """The destinations of a rule; its own service where it names none; None if none can be named."""
        refs = conf.parts(name)
        if not refs:
            return [{"destination": {"host": self.services.host(service)}}]
        found: list[tuple[Spec, int | None]] = []
        for ref in refs:
            weight = ref.integer("weight")
            target = self._destination(ref, service)
            if target is not None and weight != 0:
                found.append((target, 1 if weight is None else weight))
        return _weighted(found) if found else None

    def _destination(self, ref: ForeignFields, service: str) -> Spec | None:
        kind = ref.text("kind")
        name, tags, labels = ref.text("name"), ref.text_map("tags"), ref.text_map("labels")
        port = ref.integer("port")
        ref.pass_over("namespace")
        name = tags.get(SERVICE_TAG) or name or labels.get("kuma.io/display-name", "")
        if kind not in _BACKENDS or not name:
            ref.leave("", f"{kind or 'it'} can't be named as a destination", "write the route")
            return None
        known = self.services.services.get(name)
        if port is not None and known is not None and port != known.port:
            ref.leave("port", f"the service is called at port {known.port}")
        return self._tagged({**tags, SERVICE_TAG: name}, service)

    def _tagged(self, tags: Mapping[str, str], service: str) -> Spec:
        """The destination of tags; those besides the service make a subset."""
        name = tags.get(SERVICE_TAG, service)
        name = service if name == ANY else name
        labels = {key: value for key, value in sorted(tags.items()) if key != SERVICE_TAG}
        destination: Spec = {"host": self.services.host(name)}
        if labels:
            subset = object_name("-".join(f"{key.rpartition('/')[2]}-{value}" for key, value in labels.items()))
            subset = subset.replace(".", "-")[:63].rstrip("-")
            self.subsets.setdefault(name, {})[subset] = {key: label_value(value) for key, value in labels.items()}
            destination["subset"] = subset
        return destination

    def _note(self, service: str, resource: KumaResource) -> None:
        self.made_from.setdefault(service, {})[resource.object] = None


def _weighted(found: list[tuple[Spec, int | None]]) -> list[Spec]:
    if len(found) == 1:
        return [{"destination": found[0][0]}]
    return [{"destination": target, **({} if weight is None else {"weight": weight})} for target, weight in found]


# -- matches


def _path(match: ForeignFields) -> tuple[list[tuple[Spec, bool]] | None, tuple[int, ...]]:
    """The paths that match, each with whether it is a prefix's own path, and Kuma's order; None: it can't be said."""
    path = match.part("path")
    kind, value = path.text("type") or "PathPrefix", path.text("value")
    if not path or (kind == "PathPrefix" and value == "/"):
        return [({}, True)], (3, 0)
    rank = {"Exact": 0, "PathPrefix": 1, "RegularExpression": 2}.get(kind)
    if rank is None or not value:
        match.leave("path", f"{kind!r} is not a match of a path that is known; the match is not taken")
        return None, ()
    order = (rank, 0 if kind == "Exact" else -len(value))
    if kind != "PathPrefix":
        return [({_KINDS[kind]: value}, False)], order
    # Kuma's prefixes end where a part of the path does.
    bare = value.rstrip("/")
    return [({"exact": bare}, True), ({"prefix": f"{bare}/"}, True)], order


def _common_match(match: ForeignFields) -> Spec | None:
    """The conditions of a match besides the path; None if it can't be said."""
    found: Spec = {}
    if method := match.text("method"):
        found["method"] = {"exact": method}
    for header in match.parts("headers"):
        kind, name, value = header.text("type") or "Exact", header.text("name").lower(), header.text("value")
        if kind == "Present":
            found.setdefault("headers", {})[name] = {}
        elif kind == "Absent":
            found.setdefault("withoutHeaders", {})[name] = {}
        elif kind in ("Exact", "Prefix", "RegularExpression"):
            found.setdefault("headers", {})[name] = {_KINDS[kind]: value}
        else:
            header.leave("type", f"{kind!r} is not a match of a header that is known; the match is not taken")
            return None
    for query in match.parts("queryParams"):
        kind = query.text("type") or "Exact"
        if kind not in ("Exact", "RegularExpression"):
            query.leave("type", f"{kind!r} is not a match of a parameter that is known; the match is not taken")
            return None
        found.setdefault("queryParams", {})[query.text("name")] = {_KINDS[kind]: query.text("value")}
    return found


def _rest_order(common: Spec) -> tuple[int, ...]:
    headers = len(common.get("headers", {})) + len(common.get("withoutHeaders", {}))
    return (0 if "method" in common else 1, -headers, -len(common.get("queryParams", {})))


def _old_match(match: ForeignFields) -> Spec:
    found: Spec = {}
    for name, field in (("path", "uri"), ("method", "method")):
        if text := _old_text(match.part(name)):
            found[field] = text
    for name, header in match.by_name("headers"):
        found.setdefault("headers", {})[name.lower()] = _old_text(header)
    return found


def _old_text(part: ForeignFields) -> Spec:
    return {name: text for name in ("exact", "prefix", "regex") if (text := part.text(name))}


# -- actions


def _headers(made: Spec, side: str, modifier: ForeignFields) -> None:
    changes: Spec = {}
    for name in ("set", "add"):
        values: dict[str, str] = {}
        for each in modifier.parts(name):
            key, value = each.text("name"), each.text("value")
            if key in values:
                each.leave("", "a header is said once; the last value is taken")
            values[key] = escaped(value)
        changes |= {name: values} if values else {}
    changes |= kept(remove=modifier.texts("remove"))
    if changes:
        made.setdefault("headers", {})[side] = changes


def escaped(value: str) -> str:
    """A header's value in which a percent sign that begins no command of Envoy's is one."""
    return value.replace("%", "%%") if header_format_reason(value) else value


def _rewrite(rewrite: ForeignFields, uri: Spec, *, is_prefix: bool) -> Spec:
    made: Spec = kept(authority=rewrite.text("hostname"))
    path = rewrite.part("path")
    kind = path.text("type")
    whole, prefix = path.text("replaceFullPath"), path.text("replacePrefixMatch")
    if kind == "ReplaceFullPath" and whole:
        if "exact" in uri:
            made["uri"] = whole
        else:
            made["uriRegexRewrite"] = {"match": "^/.*$", "rewrite": whole}
    elif kind == "ReplacePrefixMatch" and is_prefix:
        bare = prefix.rstrip("/")
        made["uri"] = f"{bare}/" if "prefix" in uri or not uri else bare or "/"
    elif kind:
        path.leave("", "replaces a prefix where the match has none")
    return made


def _redirect(redirect: ForeignFields, uri: Spec) -> Spec:
    path = redirect.part("path")
    kind = path.text("type")
    whole, prefix = path.text("replaceFullPath"), path.text("replacePrefixMatch")
    target = whole if kind == "ReplaceFullPath" else f"%PREFIX()%{prefix}" if kind == "ReplacePrefixMatch" else ""
    return kept(
        scheme=redirect.text("scheme"),
        authority=redirect.text("hostname"),
        port=redirect.integer("port"),
        redirectCode=redirect.integer("statusCode"),
        uri=target,
    )


def _old_changes(modify: ForeignFields, uri: Spec) -> Spec:
    made: Spec = {}
    path, host = modify.part("path"), modify.part("host")
    rewrite = kept(uri=path.text("rewritePrefix"), authority=host.text("value"))
    regex = path.part("regex")
    if pattern := regex.text("pattern"):
        rewrite["uriRegexRewrite"] = {"match": pattern, "rewrite": regex.text("substitution")}
    if "uri" in rewrite and "regex" in uri:
        path.leave("rewritePrefix", "replaces a prefix where the match has none")
        del rewrite["uri"]
    made |= kept(rewrite=rewrite)
    for name, side in (("requestHeaders", "request"), ("responseHeaders", "response")):
        part = modify.part(name)
        changes: dict[str, Any] = {}
        for each in part.parts("add"):
            operation = "add" if each.flag("append") else "set"
            changes.setdefault(operation, {})[each.text("name")] = escaped(each.text("value"))
        if removed := [each.text("name") for each in part.parts("remove")]:
            changes["remove"] = removed
        if changes:
            made.setdefault("headers", {})[side] = changes
    return made


def _pass_over(fields: ForeignFields) -> None:
    fields.pass_over(*fields.names())
