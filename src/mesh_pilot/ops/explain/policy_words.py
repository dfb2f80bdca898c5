"""AuthorizationPolicies in words, and the policies of a workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mesh_pilot.mesh.policies.context import is_in_dry_run
from mesh_pilot.mesh.policies.peer_authentication import peer_modes
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.mesh.selection.workloads import Labels, oldest_general, oldest_selecting, selected
from mesh_pilot.model.config import Config
from mesh_pilot.model.redaction import redacted
from mesh_pilot.ops.explain.description import DescribedLine
from mesh_pilot.ops.explain.fields import decider
from mesh_pilot.world import View

_SOURCE = {
    "principals": "identity",
    "request_principals": "token",
    "namespaces": "namespace",
    "service_accounts": "service account",
    "ip_blocks": "address",
    "remote_ip_blocks": "original address",
}
_OPERATION = {"hosts": "host", "ports": "port", "methods": "method", "paths": "path"}

_ACTIONS = {"ALLOW": "allows", "DENY": "denies", "AUDIT": "audits", "CUSTOM": "asks an extension provider about"}


def policy_lines(view: View, namespace: str, labels: Labels) -> Iterator[DescribedLine]:
    """The AuthorizationPolicies of a workload in words: who may reach it, in the order in which they are asked."""
    keys = selected(view, "AuthorizationPolicy", namespace, labels)
    found = [config for config in (view.config(key) for key in keys) if config is not None]
    order = ("CUSTOM", "DENY", "ALLOW", "AUDIT")
    for action in order:
        for config in (config for config in found if config.spec.action.name == action):
            yield from _rule_lines(view, config)
    found = [config for config in found if not is_in_dry_run(config)]
    actions = {config.spec.action.name for config in found}
    if "ALLOW" in actions:
        yield DescribedLine("everything else is denied, because an ALLOW policy applies")
    elif found:
        yield DescribedLine("everything else is allowed: no ALLOW policy applies")
    else:
        yield DescribedLine("everybody: no AuthorizationPolicy applies")
    for kind in ("ClusterRbacConfig", "RbacConfig"):
        for config in (config for config in view.all_configs(kind) if config.spec.mode.name != "OFF"):
            yield DescribedLine("ServiceRoles have to allow it, too", decider(view, FieldOfObject(config.key)))


def _rule_lines(view: View, config: Config) -> Iterator[DescribedLine]:
    action = ("only noted, in dry run: " if is_in_dry_run(config) else "") + _ACTIONS[config.spec.action.name]
    if not config.spec.rules:
        nothing = "nothing" if config.spec.action.name == "ALLOW" else "nothing: it has no rules"
        yield DescribedLine(f"{action} {nothing}", decider(view, FieldOfObject(config.key)))
    for index, rule in enumerate(config.spec.rules):
        text = f"{action} {rule_words(rule)}"
        yield DescribedLine(text, decider(view, FieldOfObject(config.key, f"spec.rules[{index}]")))


def rule_words(rule: Any) -> str:
    """A rule in words: ``requests from namespace shop to method GET and path /v1*``."""
    parts = ["requests"]
    if rule.from_:
        parts.append("from " + " or ".join(_all(each.source, _SOURCE) or "anyone" for each in rule.from_))
    if rule.to:
        parts.append("to " + " or ".join(_all(each.operation, _OPERATION) or "anything" for each in rule.to))
    if rule.when:
        parts.append("when " + " and ".join(_condition(each) for each in rule.when))
    return " ".join(parts) if len(parts) > 1 else "every request"


def _all(message: Any, names: dict[str, str]) -> str:
    found = []
    for field, word in names.items():
        if values := list(getattr(message, field, None) or ()):
            found.append(f"{word} {_one_of(values)}")
        if values := list(getattr(message, f"not_{field}", None) or ()):
            found.append(f"{word} not {_one_of(values)}")
    return " and ".join(found)


def _condition(condition: Any) -> str:
    found, key = [], condition.key
    for word, values in (("is", condition.values), ("is not", condition.not_values)):
        if values:
            found.append(f"{key} {word} {_one_of(redacted({key: values})[key])}")
    return " and ".join(found)


def _one_of(values: Iterable[str]) -> str:
    every = list(values)
    return every[0] if len(every) == 1 else f"({', '.join(every)})"


def mtls_lines(view: View, namespace: str, labels: Labels, ports: Iterable[int]) -> Iterator[DescribedLine]:
    """The mTLS mode of each workload port, and the PeerAuthentication that sets it."""
    modes = peer_modes(view, namespace, labels)
    own = oldest_selecting(view, "PeerAuthentication", namespace, labels) if namespace != view.root_namespace else None
    general = oldest_general(view, "PeerAuthentication", namespace)
    of_mesh = oldest_general(view, "PeerAuthentication", view.root_namespace)
    config = own or general or of_mesh
    for port in sorted(set(ports)):
        field = "spec.mtls"
        if own is not None and port in own.spec.port_level_mtls:
            field = f"spec.portLevelMtls.{port}"
        about = decider(view, FieldOfObject(config.key, field)) if config is not None else None
        why = "" if config is not None else ": no PeerAuthentication applies"
        yield DescribedLine(f"port {port} accepts {_MODES[modes.at(port).value]}{why}", about)


_MODES = {
    "STRICT": "mTLS only (STRICT)",
    "PERMISSIVE": "mTLS and plaintext (PERMISSIVE)",
    "DISABLE": "plaintext only (DISABLE)",
}
