"""The way of a request through a proxy: its steps, each with its reason, and what was nearly chosen.

Envoy decides in stages: listener, filter chain, network filters, connection manager, route table, virtual host, route,
cluster, endpoints. Each stage here is a function that adds its step to the answer, or ends it, in that order; none
looks back. What is decided is read from the proxy's own configuration and not from Istio's objects: whatever the
translators, patches or an older push made of them is what a request meets. (`ops.explain.attribution` asks afterwards
which objects were behind each step.) A condition that only Envoy can evaluate (CEL, runtime, a matcher of ours unknown)
is a note, not a guess; a simulation with Envoy itself would need its binary where the question is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.datagrams import datagram_clusters
from mesh_pilot.explain.inspection.why.answer import Step, WhyAnswer, WhyOutcome
from mesh_pilot.explain.inspection.why.chains import TLS, ChosenChain, find_chain
from mesh_pilot.explain.inspection.why.clusters import cluster_parts, cluster_words, endpoint_facts
from mesh_pilot.explain.inspection.why.evidence import Evidence, JsonTable, RouteTableFacts
from mesh_pilot.explain.inspection.why.listeners import ListenerFacts, chain_connection, find_listener
from mesh_pilot.explain.inspection.why.matchers import (
    Message,
    RequestFacts,
    percentage,
    request_facts,
    shown_percentage,
)
from mesh_pilot.explain.inspection.why.paths import normalized_path
from mesh_pilot.explain.inspection.why.rbac import rbac_verdicts
from mesh_pilot.explain.inspection.why.request import WhyRequest, is_address
from mesh_pilot.explain.inspection.why.route_words import abort_of, redirect_target, rewritten_path, route_extras
from mesh_pilot.explain.inspection.why.routes import RouteMatch, find_virtual_host, matched_routes, without_port
from mesh_pilot.explain.inspection.why.upgrades import may_upgrade, upgrade_of
from mesh_pilot.model.counts import counted

NEARLY = 3
"""Routes listed as nearly chosen."""

SHOWN_ENDPOINTS = 20

NAMED_PORTS = 10
"""Ports of a proxy that are named where it does not listen at the request's."""

NOWHERE = "BlackHoleCluster"
BLOCK_ALL = "block_all"
"""The cluster, and the virtual host, for hosts that are declared nowhere, where those are refused."""

HCM = "HttpConnectionManager"
TCP = "TcpProxy"


def explain(evidence: Evidence, request: WhyRequest) -> WhyAnswer:
    """The way of a request through a proxy."""
    # Envoy's order: the listener, its filter chain, network filters (RBAC before the last one), then HTTP or TCP. The
    # address must be known first, as listeners and chains are chosen by it; whether the client shows a certificate is
    # known only once a chain is chosen.
    named = request.address or (request.host if is_address(request.host) else "")
    if not request.inbound:
        request = attrs.evolve(request, address=named or evidence.address_of(request.host, request.port))
    answer = WhyAnswer(request)
    listener = _listener(evidence, answer, is_sure=bool(named))
    if listener is None:
        return answer
    if request.scheme == "udp":
        answer.notes.append("a client is an address and a port, and keeps its endpoint while it has a session")
        _clusters(evidence, datagram_clusters(evidence.listener(listener.name)), {}, answer)
        return answer
    chosen = _chain(evidence, listener, answer)
    if chosen is None:
        return answer
    if not request.inbound:
        answer.request = attrs.evolve(request, mtls=_client_certificate(chosen) == "mTLS")
    filters = [each.get("typed_config", {}) for each in chosen.chain.get("filters", ())]
    manager = next((config for config in filters if str(config.get("@type", "")).endswith(HCM)), None)
    if request.is_tls and manager is not None and not _ends_tls(chosen):
        answer.notes.append("the proxy cannot read this TLS: an HTTP filter chain would refuse it")
    if manager is not None and request.is_http:
        _network_policies(chosen, answer)
        _http(evidence, manager, chosen, answer)
        return answer
    _network_policies(chosen, answer)
    if manager is not None:
        _end(answer, "closed", "closed: the proxy expects HTTP here and closes other connections")
        return answer
    _tcp(evidence, filters, answer)
    return answer


# -- connection


def _listener(evidence: Evidence, answer: WhyAnswer, *, is_sure: bool) -> ListenerFacts | None:
    request = answer.request
    found = find_listener(evidence.listeners(), request, is_sure=is_sure)
    if found is None:
        text = f"not taken: the proxy does not listen at port {request.port}"
        if not request.inbound:
            found_there = (each for each in evidence.listeners() if each.is_udp == (request.scheme == "udp"))
            ports = sorted({each.port for each in found_there if each.binds and each.direction != "INBOUND"})
            text += f", but at {', '.join(map(str, ports[:NAMED_PORTS]))}" if ports else ""
        _end(answer, "closed", text)
        return None
    text = found.reason
    if found.captured_by:
        text = f"{found.captured_by} hands the redirected connection on: {text}"
    if found.guessed:
        answer.notes.append(f"assumed: {found.guessed}")
    facts = found.facts
    answer.add("listener", facts.name, text, address=facts.address, port=facts.port, captured_by=found.captured_by)
    return facts


def _chain(evidence: Evidence, facts: ListenerFacts, answer: WhyAnswer) -> ChosenChain | None:
    listener = evidence.listener(facts.name)
    request = answer.request
    if facts.is_http_proxy:
        connection = attrs.evolve(chain_connection(listener, request), port=facts.port, address=facts.address)
    elif request.inbound and facts.name != "virtualInbound":
        connection = attrs.evolve(chain_connection(listener, request), address=facts.address)
    else:
        connection = chain_connection(listener, request)
    found = find_chain(listener, connection)
    if found is None:
        of = "TLS" if connection.transport == TLS else "plaintext"
        name = f" for {connection.server_name}" if connection.server_name else ""
        _end(answer, "closed", f"closed: no filter chain of {facts.name} takes {of}{name}")
        return None
    if found.sources_matter and any("source_type" in _match(c) for c in listener.get("filter_chains", ())):
        answer.notes.append("filter chains differ by the client's address: --source-ip says which")
    name = str(found.chain.get("name", "")) or ("default" if found.index < 0 else f"#{found.index}")
    reasons = ", ".join(found.reasons) or "the only one that fits"
    answer.add(
        "filter chain",
        name,
        reasons,
        index=found.index,
        transport=connection.transport,
        server_name=connection.server_name,
        mtls=_client_certificate(found),
        server_names=list(_match(found.chain).get("server_names", ())),
        has_subnets=bool(_match(found.chain).get("prefix_ranges")),
    )
    return found


def _match(chain: Message) -> Message:
    found: Message = chain.get("filter_chain_match", {})
    return found


def _ends_tls(chosen: ChosenChain) -> bool:
    return bool(chosen.chain.get("transport_socket"))


def _client_certificate(chosen: ChosenChain) -> str:
    """The TLS that the proxy ends: ``mTLS``, ``TLS``; empty without."""
    socket = chosen.chain.get("transport_socket")
    if not socket:
        return ""
    return "mTLS" if socket.get("typed_config", {}).get("require_client_certificate") is True else "TLS"


def _network_policies(chosen: ChosenChain, answer: WhyAnswer) -> None:
    _policies(chosen.chain.get("filters", ()), None, answer)


def _policies(filters: Sequence[Message], facts: RequestFacts | None, answer: WhyAnswer) -> None:
    for verdict in rbac_verdicts(filters, answer.request, facts):
        text = verdict.text
        step = answer.add("policy", f"RBAC {verdict.action}", text, admits=verdict.admits, policies=[*verdict.policies])
        if verdict.admits is False:
            if facts is not None:
                step.details["status"] = 403
            answer.result.setdefault("denied", "request" if facts is not None else "connection")
            answer.result.setdefault("why", verdict.reason)


def _tcp(evidence: Evidence, filters: Sequence[Message], answer: WhyAnswer) -> None:
    proxy = next((config for config in filters if str(config.get("@type", "")).endswith(TCP)), None)
    if proxy is None:
        kinds = ", ".join(str(config.get("@type", "")).rpartition(".")[2] for config in filters) or "no filters"
        _end(answer, "closed", f"closed: the filter chain has {kinds}, and what it does is not evaluated")
        return
    if answer.request.is_http:
        answer.notes.append("the connection is forwarded as bytes: no route looks at the request")
    if "weighted_clusters" in proxy:
        clusters = proxy["weighted_clusters"].get("clusters", ())
        total = sum(int(each.get("weight", 0)) for each in clusters) or 1
        _clusters(evidence, [(str(e["name"]), 100 * int(e.get("weight", 0)) / total) for e in clusters], {}, answer)
    else:
        _clusters(evidence, [(str(proxy.get("cluster", "")), 100.0)], {}, answer)


# -- HTTP


def _http(evidence: Evidence, manager: Message, chosen: ChosenChain, answer: WhyAnswer) -> None:
    # Envoy's order, in which each step may end the request: the codec and path normalization, HTTP filters, the route
    # table, the virtual host, its routes. What an earlier step changes (path, Host, scheme) is what a later one sees.
    request = answer.request
    if "#" in request.path:
        _end(answer, "response", "answered with 400: the path has a fragment (#), which Envoy refuses", status=400)
        return
    path, why_path = normalized_path(manager, request.path)
    if why_path:
        answer.notes.append(f"routes see the path {path}: {why_path}")
    authority = request.authority
    if manager.get("strip_any_host_port") or (
        manager.get("strip_matching_host_port") and authority.endswith(f":{request.port}")
    ):
        authority = without_port(authority)
    scheme = _scheme(manager, chosen, request)
    facts = request_facts(request, scheme=scheme, path=path, authority=authority)
    repeated = [name for name, values in facts.headers.items() if len(values) > 1]
    if repeated:
        answer.notes.append(
            f"any of several values of {', '.join(repeated)} counts; Envoys before 1.39 join them by commas"
        )
    _policies(manager.get("http_filters", ()), facts, answer)
    table, name = _table(evidence, manager)
    if table is None:
        _end(answer, "response", f"answered with 404: the proxy has no route table {name!r}", status=404)
        return
    answer.add("route table", name, "the listener's" if "rds" in manager else "part of the listener", table=name)
    found = find_virtual_host(
        table.domains, authority, ignore_port=bool(table.settings.get("ignore_port_in_host_matching"))
    )
    if found is None:
        _end(answer, "response", f"answered with 404: no virtual host is for {authority!r}", status=404)
        return
    host = table.virtual_host(found.index)
    host_name = str(host.get("name", ""))
    answer.add("virtual host", host_name, f"the domain {found.domain} {found.reason}", table=name, domain=found.domain)
    if host.get("require_tls") in ("ALL", "EXTERNAL_ONLY") and scheme != "https":
        _end(answer, "redirect", "redirected to HTTPS (301): the virtual host wants no plaintext", status=301)
        return
    routes = host.get("routes", ())
    matches = matched_routes(routes, facts)
    _nearly(matches, routes, name, host_name, answer)
    upgrade = upgrade_of(request)
    for match in matches:
        if not match.is_met:
            continue
        if upgrade and not may_upgrade(manager, routes[match.index], upgrade):
            _no_upgrade(upgrade, match, answer)
        else:
            _route(evidence, match, routes, name, host_name, answer)
    if not routes and found.domain == "*":
        _end(answer, "response", f"answered with 404: no virtual host is for {authority!r}", status=404)
    elif (left := 100 - sum(match.portion for match in matches if match.is_met)) > 0.001:
        reason = f"none of its {counted(len(routes), 'route')} matches" if routes else "it has no routes"
        text = f"answered with 404: the virtual host {host_name} has the host, but {reason}"
        _end(answer, "response", text, portion=left, status=404)


def _no_upgrade(upgrade: str, match: RouteMatch, answer: WhyAnswer) -> None:
    text = f"answered with 403: the proxy does not take {upgrade.upper()} here"
    _end(answer, "response", text, portion=match.portion, status=403)


def _scheme(manager: Message, chosen: ChosenChain, request: WhyRequest) -> str:
    """The scheme as routes see it: a proxy that trusts its clients believes ``x-forwarded-proto``."""
    if not manager.get("use_remote_address"):
        for name, value in request.headers:
            if name == "x-forwarded-proto" and value.lower() in ("http", "https"):
                return value.lower()
    return "https" if _ends_tls(chosen) else "http"


def _table(evidence: Evidence, manager: Message) -> tuple[RouteTableFacts | None, str]:
    if "rds" in manager:
        name = str(manager["rds"].get("route_config_name", ""))
        return evidence.route_table(name), name
    table = manager.get("route_config", {})
    return JsonTable(table, table.get("virtual_hosts", ())), str(table.get("name", ""))


def _nearly(matches: Sequence[RouteMatch], routes: Sequence[Message], table: str, host: str, answer: WhyAnswer) -> None:
    """The earlier routes that lack the fewest conditions; routes for other paths are near only if no others are."""
    missed = [match for match in matches if not match.is_met]
    near = sorted(missed, key=lambda match: (not match.conditions[0].is_met, len(match.missed), match.index))
    for match in near[:NEARLY]:
        if not match.conditions[0].is_met and len(match.conditions) == 1 and answer.nearly:
            continue
        text = "; ".join(condition.miss for condition in match.missed)
        details = {
            "table": table,
            "virtual_host": host,
            "index": match.index,
            "routes": len(routes),
            "missed": [condition.text for condition in match.missed],
        }
        answer.nearly.append(Step("route", _route_name(match.index, routes[match.index]), f"needs: {text}", details))


def _route_name(index: int, route: Message) -> str:
    name = str(route.get("name", ""))
    return f"#{index + 1} {name}".rstrip()


def _route(
    evidence: Evidence, match: RouteMatch, routes: Sequence[Message], table: str, host: str, answer: WhyAnswer
) -> None:
    route = routes[match.index]
    words = ", ".join(condition.text for condition in match.conditions)
    if match.share is not None:
        words = f"for {shown_percentage(match.portion)} of requests; else the search continues: {words}"
    extras = [*route_extras(route)]
    text = f"{words}; {', '.join(extras)}" if extras else words
    answer.add(
        "route",
        _route_name(match.index, route),
        text,
        table=table,
        virtual_host=host,
        index=match.index,
        routes=len(routes),
        route_name=str(route.get("name", "")),
        extras=extras,
        share=match.portion if match.share is not None else None,
        path=rewritten_path(route, answer.request.path),
        host=str(route.get("route", {}).get("host_rewrite_literal", "")),
    )
    if "redirect" in route:
        status, where = redirect_target(route["redirect"], answer.request)
        text = f"redirected to {where} ({status})"
        _end(answer, "redirect", text, portion=match.portion, status=status, location=where)
    elif "direct_response" in route:
        status = int(route["direct_response"].get("status", 0))
        text = f"answered with {status} by the proxy itself"
        if host.rpartition("/")[2] == BLOCK_ALL:
            text += ": the host is declared nowhere, and such hosts are refused (REGISTRY_ONLY)"
        _end(answer, "response", text, portion=match.portion, status=status)
    elif "route" in route:
        action = route["route"]
        wanted = action.get("metadata_match", {}).get("filter_metadata", {}).get("envoy.lb", {})
        _clusters(evidence, [*_destinations(action, answer)], wanted, answer, match.portion, abort_of(route))
        _mirrors(action, answer)
    else:
        _end(answer, "response", "taken by a route that is not evaluated", portion=match.portion)


def _destinations(action: Message, answer: WhyAnswer) -> Iterator[tuple[str, float]]:
    if "cluster_header" in action:
        header = str(action["cluster_header"]).lower()
        yield dict(answer.request.headers).get(header, f"<header {header}>"), 100.0
    elif "weighted_clusters" in action:
        clusters = action["weighted_clusters"].get("clusters", ())
        total = sum(int(each.get("weight", 0)) for each in clusters) or 1
        if "header_name" in action["weighted_clusters"]:
            answer.notes.append("a header's hash chooses among the clusters: which, is not evaluated")
        for each in clusters:
            yield str(each.get("name", "")), 100 * int(each.get("weight", 0)) / total
    else:
        yield str(action.get("cluster", "")), 100.0


def _mirrors(action: Message, answer: WhyAnswer) -> None:
    for policy in action.get("request_mirror_policies", ()):
        fraction = policy.get("runtime_fraction", {}).get("default_value")
        share = percentage(fraction) if fraction else 100.0
        answer.add("mirror", str(policy.get("cluster", "")), f"gets a copy of {shown_percentage(share)} of requests")


# -- clusters


def _clusters(
    evidence: Evidence,
    named: Sequence[tuple[str, float]],
    wanted: Mapping[str, Any],
    answer: WhyAnswer,
    portion: float = 100.0,
    aborted: tuple[float, str] = (0.0, ""),
) -> None:
    """Clusters with their shares of ``portion`` percent of the requests, after a fault has ``aborted`` a share."""
    clusters, outcomes = [], []
    left = portion * (100 - aborted[0]) / 100
    if aborted[0]:
        outcomes.append(WhyOutcome(portion - left, f"aborted with {aborted[1]}, by a fault of the route", True))
    for name, share in named:
        failure = _cluster(evidence, name, share, wanted, answer)
        clusters.append({"name": name, "share": share * portion / 100})
        text = f"forwarded to {_cluster_text(name)}"
        if failure:
            lost = "dropped" if answer.request.scheme == "udp" else "closed"
            text = f"{'answered with 503' if answer.request.is_http else lost}: {failure}"
        outcomes.append(WhyOutcome(share * left / 100, text, bool(failure), name))
    if answer.result.get("clusters"):
        answer.result["clusters"] += clusters
        answer.conclude([*answer.outcomes, *outcomes])
    else:
        _end(answer, "cluster", *outcomes, clusters=clusters)


def _cluster_text(name: str) -> str:
    parts = cluster_parts(name)
    if parts is None or not parts[0]:
        return name
    return f"{parts[0]}:{parts[1]}" + (f" subset {parts[2]}" if parts[2] else "")


def _cluster(evidence: Evidence, name: str, share: float, wanted: Mapping[str, Any], answer: WhyAnswer) -> str:
    """Add a cluster and its endpoints; why no request to it succeeds, empty if some do."""
    # In Envoy's order, each of which may end it: the cluster is there, it has hosts at all, some of them are healthy.
    # What a dump cannot know (hosts by original address, endpoints that are not in it) is not a failure.
    cluster = evidence.cluster(name)
    share_text = "" if share == 100 else f"{shown_percentage(share)} of requests; "
    if cluster is None:
        text = f"{share_text}the proxy has no such cluster: it answers 503"
        answer.add("cluster", name, text, share=share, missing=True)
        return f"the proxy has no cluster for {_cluster_text(name)}"
    answer.add("cluster", name, share_text + ", ".join(cluster_words(cluster)), share=share)
    if name == NOWHERE and answer.request.scheme == "udp":
        return "the backend, or its port, is not there"
    if name == NOWHERE:
        return "the host is declared nowhere, and such hosts are refused (REGISTRY_ONLY)"
    service = str(cluster.get("eds_cluster_config", {}).get("service_name", "")) or name
    kind = cluster.get("type", "STATIC")
    if kind == "ORIGINAL_DST":
        return ""
    assignment = evidence.endpoints(service) if kind == "EDS" else None
    if assignment is None and "load_assignment" not in cluster:
        answer.add("endpoints", name, "not in the dump", cluster=name)
        return ""
    endpoints = endpoint_facts(cluster, assignment, wanted)
    usable = [endpoint for endpoint in endpoints if endpoint.is_usable]
    kinds = sorted({endpoint.tls for endpoint in usable})
    failure = ""
    if not endpoints:
        text = "there are none: the proxy answers 503 (no healthy upstream)"
        failure = f"{_cluster_text(name)} has no endpoints"
    elif not usable:
        text = f"none of {len(endpoints)} is healthy"
        failure = f"none of the {counted(len(endpoints), 'endpoint')} of {_cluster_text(name)} is healthy"
    else:
        text = f"{len(usable)} of {len(endpoints)} healthy, by {' or '.join(kinds)}"
    shown = [attrs.asdict(endpoint) for endpoint in endpoints[:SHOWN_ENDPOINTS]]
    answer.add("endpoints", name, text, cluster=name, count=len(endpoints), endpoints=shown)
    return failure


def _end(answer: WhyAnswer, kind: str, *outcomes: str | WhyOutcome, portion: float = 100.0, **details: Any) -> None:
    """End the way of ``portion`` percent of the requests."""
    if denied := answer.result.get("denied"):
        if "kind" in answer.result:
            return  # an earlier route has said so
        how = "closed" if denied == "connection" else "answered with 403"
        text = f"{how}: {answer.result['why']}"
        answer.result = {"kind": "closed"} if denied == "connection" else {"kind": "response", "status": 403}
        answer.result |= {"denied": True, "otherwise": {"kind": kind, **details}}
        answer.conclude([WhyOutcome(100.0, text, True)])
        return
    fails = kind == "closed" or int(details.get("status", 200)) >= 400
    told = (each if isinstance(each, WhyOutcome) else WhyOutcome(portion, each, fails) for each in outcomes)
    answer.conclude([*answer.outcomes, *told])
    answer.result = answer.result or {"kind": kind, **details}
