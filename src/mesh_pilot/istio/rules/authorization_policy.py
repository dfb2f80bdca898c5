"""Rules for AuthorizationPolicy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.istio.meaning.descriptors import json_name
from mesh_pilot.istio.rules.common import check_match_labels, check_targets, warn_of_waypoints
from mesh_pilot.istio.rules.context import Context, check, error, warning
from mesh_pilot.istio.rules.names import port_reason, small_number, subnet_reason
from mesh_pilot.model.config import Problem


class _Lists:
    """The lists of a message, each with that of its negation, by the names that users write."""

    def __init__(self, *plain: str) -> None:
        attributes = [f"{negation}{name}" for name in plain for negation in ("", "not_")]
        self.names = [json_name(attribute) for attribute in attributes]
        self._values = attrgetter(*attributes)

    def filled(self, message: object) -> Mapping[str, Sequence[str]]:
        """The lists that are not empty."""
        return {name: values for name, values in zip(self.names, self._values(message), strict=True) if values}


_OF_SOURCE = _Lists(
    *("principals", "request_principals", "namespaces", "service_accounts", "trust_domains"),
    *("ip_blocks", "remote_ip_blocks"),
)
_OF_OPERATION = _Lists("hosts", "ports", "methods", "paths")

ATTRIBUTES = (
    "request.headers",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "request.auth.claims",
    "source.ip",
    "remote.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "source.trustDomain",
    "destination.ip",
    "destination.port",
    "connection.sni",
)
"""Keys of `when`; headers and claims take a name in brackets."""

MAX_SERVICE_ACCOUNT = 320

MAX_VALUE = 16 * 1024
"""Characters of a value."""

MAX_IDENTITY = 2048
"""Characters of a value that may become a regular expression, and of keys; SPIFFE allows no longer identities."""

MAX_SLASHES = 100
"""In a request principal: any of them may separate its issuer from its subject, and Envoy tries them all."""

_IDENTITIES = {
    *("source.principal", "source.namespace", "source.serviceAccount", "source.trustDomain", "request.auth.principal"),
    *("principals", "notPrincipals", "requestPrincipals", "notRequestPrincipals", "namespaces", "notNamespaces"),
    *("serviceAccounts", "notServiceAccounts", "trustDomains", "notTrustDomains"),
}
"""Keys and lists whose values are identities, or parts of them."""

_KEYS = {
    "ipblocks": "source.ip",
    "remoteipblocks": "remote.ip",
    "serviceaccounts": "source.serviceAccount",
    "trustdomains": "source.trustDomain",
}
"""Lists of a source whose values have a form, in lower case, each with the key of `when` that means the same."""
_EXCLUDED = {
    "serviceAccounts": ("principals", "namespaces"),
    "notServiceAccounts": ("notPrincipals", "notNamespaces"),
}

_KEYED = re.compile(r"(request\.headers|request\.auth\.claims)(\[[^\[\]]+\])+")
_NOT_IN_HEADER = re.compile(r"[\r\n\0]")
_FILTER_METADATA = re.compile(r"experimental\.envoy\.filters\.[^\[\]]+\[.+\]")
_TRUST_DOMAIN = re.compile(r"\*?[^/*]*|[^/*]+\*")
_TEMPLATE = re.compile(r"\{\*\*?\}")


def validate(spec: api.AuthorizationPolicy, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an AuthorizationPolicy."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, spec.target_ref, spec.target_refs, context)
    yield from warn_of_waypoints(spec.target_ref, spec.target_refs)
    action = spec.action
    custom = action == api.AuthorizationPolicyAction.CUSTOM
    if custom and (spec.provider is None or not spec.provider.name):
        yield error("spec.provider.name", "is missing: action CUSTOM needs it")
    if not custom and spec.provider is not None:
        yield error("spec.provider", f"goes with action CUSTOM only, not {action.name}")
    if not spec.rules and action in (api.AuthorizationPolicyAction.CUSTOM, api.AuthorizationPolicyAction.DENY):
        reason = f"is missing: {action.name} without rules does nothing; an empty rule ({{}}) matches every request"
        yield error("spec.rules", reason)
    for index, rule in enumerate(spec.rules):
        yield from _check_rule(f"spec.rules[{index}]", rule, custom=custom)


def _check_rule(path: str, rule: api.Rule, *, custom: bool) -> Iterator[Problem]:
    for index, origin in enumerate(rule.from_):
        here = f"{path}.from[{index}].source"
        if origin.source is None:
            yield error(here, "is missing")
        else:
            yield from check_source(here, origin.source, custom=custom)
    for index, to in enumerate(rule.to):
        here = f"{path}.to[{index}].operation"
        if to.operation is None:
            yield error(here, "is missing")
        else:
            yield from check_operation(here, to.operation)
    for index, condition in enumerate(rule.when):
        yield from check_condition(f"{path}.when[{index}]", condition, custom=custom)


def check_source(path: str, source: api.Source, *, custom: bool = False) -> Iterator[Problem]:
    lists = _OF_SOURCE.filled(source)
    yield from _check_filled(path, lists, _OF_SOURCE)
    for name, values in lists.items():
        if key := _KEYS.get(name.removeprefix("not").lower()):
            for index, value in enumerate(values):
                yield from check(f"{path}.{name}[{index}]", _form_reason(key, value) if value else "")
        elif custom:
            yield error(f"{path}.{name}", "is not supported with action CUSTOM")
    for name, others in _EXCLUDED.items():
        for other in others:
            if name in lists and other in lists:
                yield error(f"{path}.{name}", f"{name} and {other} exclude each other")


def _service_account_reason(account: str) -> str:
    if len(account) > MAX_SERVICE_ACCOUNT:
        return f"is longer than {MAX_SERVICE_ACCOUNT} characters"
    if "*" in account:
        return "wildcards don't work in service accounts"
    if account.count("/") > 1 or not all(account.split("/")):
        return f'"{account}" is not of the form account or namespace/account'
    return ""


def check_operation(path: str, operation: api.Operation) -> Iterator[Problem]:
    lists = _OF_OPERATION.filled(operation)
    yield from _check_filled(path, lists, _OF_OPERATION)
    for name in ("ports", "notPorts"):
        for index, port in enumerate(lists.get(name, ())):
            yield from _check_port(f"{path}.{name}[{index}]", port) if port else ()
    for name in ("paths", "notPaths"):
        for index, value in enumerate(lists.get(name, ())):
            yield from check(f"{path}.{name}[{index}]", _path_reason(value))


def _check_filled(path: str, lists: Mapping[str, Sequence[str]], of: _Lists) -> Iterator[Problem]:
    """At least one list is not empty, no entry is, and none is too long."""
    if not lists:
        yield error(path, f"is empty: at least one of {', '.join(of.names)} is required")
    for name, values in lists.items():
        for index, value in enumerate(values):
            yield from check(f"{path}.{name}[{index}]", _length_reason(name, value) if value else "must not be empty")


def _check_port(path: str, port: str) -> Iterator[Problem]:
    number = small_number(port)
    if number == 0:
        yield warning(path, "0 matches no connection")  # Istio takes it
    else:
        yield from check(path, f'"{port}" is not a port number' if number is None else port_reason(number))


def _path_reason(path: str) -> str:
    """The fault in a path with `{*}` (one segment) and `{**}` (any number of segments), each alone between slashes."""
    if "{" not in path and "}" not in path:
        return ""
    if len(path) > MAX_IDENTITY:
        return f"has {len(path)} characters, allowed with {{*}} and {{**}} are {MAX_IDENTITY}"
    segments = path.split("/")
    braced = [segment for segment in segments if "{" in segment or "}" in segment]
    if not all(_TEMPLATE.fullmatch(segment) for segment in braced):
        return f'"{path}": only {{*}} and {{**}} are templates, alone between slashes'
    if any("*" in segment for segment in segments if segment not in braced):
        return f'"{path}": "*" can\'t be combined with {{*}} and {{**}}'
    if "{**}" in segments and "{*}" in segments[segments.index("{**}") :]:
        return f'"{path}": {{*}} can\'t come after {{**}}'
    return f'"{path}": {{**}} can be there once' if segments.count("{**}") > 1 else ""


def check_condition(path: str, condition: api.Condition, *, custom: bool = False) -> Iterator[Problem]:
    key = condition.key
    # An unknown key ends the check: what its values may be depends on it. Its length comes first, as the key is quoted.
    if not key:
        yield error(f"{path}.key", "is missing")
        return
    if len(key) > MAX_IDENTITY:
        yield error(f"{path}.key", f"has {len(key)} characters, allowed are {MAX_IDENTITY}")
        return
    if not condition.values and not condition.not_values:
        yield error(path, f"values, notValues, or both are required for {key}")
    known = key in ATTRIBUTES and key not in ("request.headers", "request.auth.claims")
    if not known and not _KEYED.fullmatch(key) and not _FILTER_METADATA.fullmatch(key):
        names = ", ".join(
            f"{name}[...]" if name in ("request.headers", "request.auth.claims") else name for name in ATTRIBUTES
        )
        yield error(f"{path}.key", f'"{key}" is not an attribute; known: {names}')
        return
    if key.startswith("request.headers") and _NOT_IN_HEADER.search(key):
        yield error(f"{path}.key", "must not have line breaks or null characters in the name of a header")
    if custom and (key in ("source.namespace", "source.principal") or key.startswith("request.auth.")):
        yield error(f"{path}.key", f"{key} is not supported with action CUSTOM")
    for name, values in (("values", condition.values), ("notValues", condition.not_values)):
        for index, value in enumerate(values):
            yield from check(f"{path}.{name}[{index}]", _value_reason(key, value))
            if key == "destination.port" and value:
                yield from _check_port(f"{path}.{name}[{index}]", value)


def _value_reason(key: str, value: str) -> str:
    if not value:
        return "must not be empty"
    return _length_reason(key, value) or _form_reason(key, value)


def _form_reason(key: str, value: str) -> str:
    """The fault in what a value of a key is written like."""
    if key in ("source.ip", "remote.ip", "destination.ip"):
        return subnet_reason(value)
    if key == "source.trustDomain":
        return "" if _TRUST_DOMAIN.fullmatch(value) else f'"{value}" is not a trust domain, with "*" at one end at most'
    return _service_account_reason(value) if key == "source.serviceAccount" else ""


def _length_reason(name: str, value: str) -> str:
    """The fault in a value of a key or list that is too long for Envoy to match."""
    limit = MAX_IDENTITY if name in _IDENTITIES else MAX_VALUE
    if len(value) > limit:
        return f"has {len(value)} characters, allowed are {limit}"
    if name.lower().endswith(("requestprincipals", "auth.principal")) and value.count("/") > MAX_SLASHES:
        return f"has {value.count('/')} slashes, allowed are {MAX_SLASHES}"
    return ""
