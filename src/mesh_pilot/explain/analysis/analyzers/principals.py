"""Identities in policies that no workload has, and that are nearly the identity of one."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.base.reading import as_object
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.near import NearNames
from mesh_pilot.explain.analysis.survey import Survey, found
from mesh_pilot.model.config import Config
from mesh_pilot.model.spiffe import SCHEME


def misspelt(survey: Survey) -> Iterator[AnalysisMessage]:
    """Principals and service accounts of AuthorizationPolicies, where the workloads that send requests are known."""
    if not survey.knows_clients:
        return
    known = frozenset(_accounts(survey))
    near = NearNames(sorted(known))
    for config in survey.of("AuthorizationPolicy"):
        for path, text, account in _named(config):
            if account not in known and (meant := near.nearest(account)):
                yield found(codes.UNKNOWN_PRINCIPAL, config, path, text, meant)


def _named(config: Config) -> Iterator[tuple[str, str, str]]:
    """The identities that a policy names: their paths, how they are written, and as ``namespace/account``."""
    spec: security.AuthorizationPolicy = config.spec
    for i, rule in enumerate(spec.rules):
        for j, source in enumerate(origin.source for origin in rule.from_):
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


def _accounts(survey: Survey) -> Iterator[str]:
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
