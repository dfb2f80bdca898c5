"""Policies: whom they select, what they name, and which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mesh_pilot.api.istio.mesh.v1alpha1 import (
    MeshConfigProxyPathNormalizationNormalizationType as Normalization,
)
from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.hosts import NearNames
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name, labels_text
from mesh_pilot.model.config import Config
from mesh_pilot.model.spiffe import SCHEME
from mesh_pilot.world.names import GATEWAY_NAME

_BY_MATCH_LABELS = (
    "PeerAuthentication",
    "RequestAuthentication",
    "ProxyConfig",
    "WasmPlugin",
    "TrafficExtension",
    "LocalRateLimit",
    "GlobalRateLimit",
)
_BY_LABELS = ("EnvoyFilter", "ServiceEntry")
_OF_CLIENTS = ("EnvoyFilter", "ProxyConfig")
_OF_GATEWAYS = ("AuthorizationPolicy", "RequestAuthentication", "Telemetry", "WasmPlugin", "TrafficExtension")


def selector_of(config: Config) -> Mapping[str, str]:
    """The labels by which an object selects workloads; empty: all."""
    selector = getattr(config.spec, "selector", None)
    if selector is not None:
        labels: Mapping[str, str] = selector if isinstance(selector, Mapping) else selector.match_labels
        return labels
    selector = getattr(config.spec, "workload_selector", None)
    return selector.labels if selector is not None else {}


def authorization(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """AuthorizationPolicies that select no workload, or name a namespace that is not there."""
    namespaces = [n.name.lower() for n in survey.of_kubernetes("Namespace")]
    for config in survey.of("AuthorizationPolicy"):
        yield from _selecting_nobody(survey, config)
        if namespaces:
            yield from _unknown_namespaces(config, namespaces)


def _selecting_nobody(survey: AnalysisContext, config: Config) -> Iterator[AnalysisMessage]:
    spec = config.spec
    labels = selector_of(config)
    if spec.target_ref is not None or spec.target_refs or not survey.knows_servers(config.namespace, labels):
        return
    is_general = spec.selector is None
    if is_general and (config.namespace == survey.root_namespace or not (survey.has_pods or survey.picture.is_whole)):
        return
    if not any(w.is_in_mesh for w in survey.selected(config.namespace, labels)):
        path = "" if is_general else "spec.selector.matchLabels"
        yield found(codes.NO_WORKLOADS, config, path, labels_text(labels))


def spellings(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """DENY rules that a request passes which spells a host or a path in another way."""
    settings = survey.mesh.path_normalization
    form = settings.normalization if settings is not None else Normalization.DEFAULT
    if form == Normalization.DECODE_AND_MERGE_SLASHES:
        passing = ""
    else:
        passing = "%2F in the place of /" + ("" if form == Normalization.MERGE_SLASHES else ", or // in its place")
    for config in survey.of("AuthorizationPolicy"):
        if config.spec.action != security.AuthorizationPolicyAction.DENY:
            continue
        for i, rule in enumerate(config.spec.rules):
            for j, operation in enumerate(to.operation for to in rule.to if to.operation is not None):
                path = f"spec.rules[{i}].to[{j}].operation"
                # A pattern with a wildcard at its end matches the other spelling, too; so does a list that has both.
                hosts = [h for h in operation.hosts if not h.endswith(("*", ".")) and f"{h}." not in operation.hosts]
                if hosts:
                    yield found(codes.DENY_PASSED, config, f"{path}.hosts", hosts[0], f"{hosts[0]}. (a dot at its end)")
                paths = [each for each in operation.paths if each.strip("*").strip("/")]
                if paths and passing:
                    yield found(codes.DENY_PASSED, config, f"{path}.paths", paths[0], f"the same with {passing}")


def _unknown_namespaces(config: Config, namespaces: list[str]) -> Iterator[AnalysisMessage]:
    for i, rule in enumerate(config.spec.rules):
        for j, source in enumerate(s.source for s in rule.from_ if s.source is not None):
            for field, names in (("namespaces", source.namespaces), ("notNamespaces", source.not_namespaces)):
                for k, name in enumerate(names):
                    if not any(_matches(namespace, name.lower()) for namespace in namespaces):
                        path = f"spec.rules[{i}].from[{j}].source.{field}[{k}]"
                        yield found(codes.NOT_FOUND, config, path, "namespace", name)


def _matches(namespace: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*"):
        return namespace.endswith(pattern[1:])
    return namespace.startswith(pattern[:-1]) if pattern.endswith("*") else namespace == pattern


def selecting_nobody(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Other objects that select no workload."""
    for kind in (*_BY_MATCH_LABELS, *_BY_LABELS):
        for config in survey.of(kind):
            labels = selector_of(config)
            if not labels or _has_targets(config):
                continue
            if not (survey.knows_clients if kind in _OF_CLIENTS else survey.knows_servers(config.namespace, labels)):
                continue
            if kind == "ServiceEntry":
                selected = survey.workloads.matching(config.namespace, labels)
            else:
                selected = survey.selected(config.namespace, labels)
            if not selected:
                path = "spec.selector.matchLabels" if kind in _BY_MATCH_LABELS else "spec.workloadSelector.labels"
                where = "" if config.namespace == survey.root_namespace else f" in namespace {config.namespace}"
                yield found(codes.SELECTS_NOBODY, config, path, labels_text(labels), where)


def _has_targets(config: Config) -> bool:
    return bool(getattr(config.spec, "target_refs", None) or getattr(config.spec, "target_ref", None))


def gateway_selectors(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Policies that select the Pods of a Gateway of Kubernetes by labels."""
    pods = [w for w in survey.workloads.all if w.is_pod and GATEWAY_NAME in w.labels]
    for kind in _OF_GATEWAYS if pods else ():
        for config in survey.of(kind):
            if _has_targets(config) or config.spec.selector is None:
                continue
            labels = config.spec.selector.match_labels.items()
            for pod in pods:
                if pod.namespace == config.namespace and labels <= pod.labels.items():
                    yield found(codes.INEFFECTIVE_SELECTOR, config, "spec.selector", pod.labels[GATEWAY_NAME])


def shadowed(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """PeerAuthentications for the workloads of an older one."""
    first: dict[tuple[str, str], Config] = {}
    for config in survey.of("PeerAuthentication"):
        labels = labels_text(selector_of(config))
        older = first.setdefault((config.namespace, labels), config)
        if older is not config:
            yield found(codes.SHADOWED_POLICY, config, "", f"{older.key} ({older.origin})")


def key_sets(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Deployments of istiod that fetch key sets from anywhere."""
    names = [full_name(config) for config in survey.of("RequestAuthentication")]
    for deployment in survey.of_kubernetes("Deployment", "apps") if names else ():
        if deployment.labels.get("app") != "istiod" or _blocks(deployment):
            continue
        more = f", and {len(names) - 5} more" if len(names) > 5 else ""
        yield found(codes.UNRESTRICTED_KEY_SETS, deployment, "", len(names), f"{', '.join(names[:5])}{more}")


def _blocks(deployment: Config) -> bool:
    containers = as_objects(deployment.spec, "spec", "template", "spec", "containers")
    variables = (variable for container in containers for variable in as_objects(container, "env"))
    return any(v.get("name") == "BLOCKED_CIDRS_IN_JWKS_URIS" and v.get("value") for v in variables)


# -- identities in policies that no workload has, and that are nearly the identity of one


def misspelt(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Principals and service accounts of AuthorizationPolicies, where the workloads that send requests are known."""
    if not survey.knows_clients:
        return
    known = frozenset(_accounts(survey))
    near = NearNames(sorted(known))
    for config in survey.of("AuthorizationPolicy"):
        for path, text, account in _named(config):
            if account not in known and (meant := near.nearest(account)):
                yield found(codes.UNKNOWN_PRINCIPAL, config, path, text, meant)


def unknown_callers(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Namespaces and identities in AuthorizationPolicies that no known caller has."""
    # What is known are proxies, registrations and objects. A caller that is not one of them may come later, so only a
    # slip is a warning. Where Namespaces of Kubernetes are known, those decide (IST0101).
    if not survey.knows_clients or survey.of_kubernetes("Namespace"):
        return
    accounts = frozenset(_accounts(survey))
    near_accounts = NearNames(sorted(accounts))
    namespaces = frozenset(_namespaces(survey, accounts))
    near = NearNames(sorted(namespaces))
    is_live = survey.picture.proxies is not None
    ours = {survey.mesh.trust_domain, *survey.mesh.trust_domain_aliases, "cluster.local", ""}
    for config in survey.of("AuthorizationPolicy"):
        for path, name in _named_namespaces(config):
            if any(_matches(known, name) for known in namespaces) or "*" in name:
                continue
            if meant := near.nearest(name):
                yield found(codes.NAMESPACE_ALMOST_KNOWN, config, path, name, meant)
            elif is_live:
                yield found(codes.NOBODY_NAMED, config, path, "in this namespace", name)
        for path, text, account in _named(config) if is_live else ():
            domain = text.removeprefix(SCHEME).partition("/ns/")[0] if "/ns/" in text else ""
            if account not in accounts and domain in ours and not near_accounts.nearest(account):
                yield found(codes.NOBODY_NAMED, config, path, "with this identity", text)


def _namespaces(survey: AnalysisContext, accounts: Iterable[str]) -> Iterator[str]:
    """The namespaces of all that is known."""
    yield from (account.partition("/")[0] for account in accounts)
    yield from (proxy.namespace for proxy in survey.picture.proxies or ())
    yield from (key.namespace for key in survey.picture.services)
    yield from (key.namespace for key in survey.picture.configs)
    yield from (endpoint.namespace for endpoints in survey.picture.endpoints.values() for endpoint in endpoints)
    yield from (pod.namespace for pod in survey.of_kubernetes("Pod"))


def _named_namespaces(config: Config) -> Iterator[tuple[str, str]]:
    """The namespaces of callers that a policy names, each with its path."""
    spec: security.AuthorizationPolicy = config.spec
    for i, rule in enumerate(spec.rules):
        for j, source in enumerate(origin.source for origin in rule.from_):
            if source is not None:
                path = f"spec.rules[{i}].from[{j}].source"
                for field, names in (("namespaces", source.namespaces), ("notNamespaces", source.not_namespaces)):
                    yield from ((f"{path}.{field}[{k}]", name) for k, name in enumerate(names))
        for j, condition in enumerate(rule.when):
            if condition.key == "source.namespace":
                path = f"spec.rules[{i}].when[{j}].values"
                yield from ((f"{path}[{k}]", name) for k, name in enumerate(condition.values))


def _named(config: Config) -> Iterator[tuple[str, str, str]]:
    """The identities that a policy names: their paths, how they are written, and as ``namespace/account``."""
    spec: security.AuthorizationPolicy = config.spec
    for i, rule in enumerate(spec.rules):
        for j, source in enumerate(origin.source for origin in rule.from_):
            # Principals carry the trust domain and may be patterns; service accounts are of the policy's namespace by
            # default.
            if source is None:
                continue
            path = f"spec.rules[{i}].from[{j}].source"
            for field, texts in (("principals", source.principals), ("notPrincipals", source.not_principals)):
                for k, text in enumerate(texts):
                    if account := _account(text):
                        yield f"{path}.{field}[{k}]", text, account
            accounts = (
                ("serviceAccounts", source.service_accounts),
                ("notServiceAccounts", source.not_service_accounts),
            )
            for field, texts in accounts:
                for k, text in enumerate(texts):
                    yield f"{path}.{field}[{k}]", text, text if "/" in text else f"{config.namespace}/{text}"
        for j, condition in enumerate(rule.when):
            if condition.key == "source.principal":
                for k, text in enumerate(condition.values):
                    if account := _account(text):
                        yield f"spec.rules[{i}].when[{j}].values[{k}]", text, account


def _account(principal: str) -> str:
    """``shop/web`` of ``cluster.local/ns/shop/sa/web``; empty for wildcards and other forms."""
    parts = principal.removeprefix(SCHEME).split("/")
    if "*" in principal or len(parts) < 4 or (parts[-4], parts[-2]) != ("ns", "sa"):
        return ""
    return f"{parts[-3]}/{parts[-1]}"


def _accounts(survey: AnalysisContext) -> Iterator[str]:
    """The identities of all workloads that are known, as ``namespace/account``."""
    for proxy in survey.picture.proxies or ():
        yield _account(proxy.identity)
    for endpoints in survey.picture.endpoints.values():
        yield from (
            _account(endpoint.service_account) or _account(f"/{endpoint.service_account}") for endpoint in endpoints
        )
    for entry in survey.of("WorkloadEntry"):
        yield f"{entry.namespace}/{entry.spec.service_account or 'default'}"
    for group in survey.of("WorkloadGroup"):
        template = group.spec.template
        yield f"{group.namespace}/{(template.service_account if template else '') or 'default'}"
    for pod in survey.of_kubernetes("Pod"):
        yield f"{pod.namespace}/{as_object(pod.spec, 'spec').get('serviceAccountName') or 'default'}"
