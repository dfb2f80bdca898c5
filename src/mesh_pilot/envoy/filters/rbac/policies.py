"""AuthorizationPolicies as Envoy's RBAC: one set of rules for each action, with the names that Istio gives them."""

from __future__ import annotations

import attrs
from envoy.config.rbac.v3.rbac_pb2 import RBAC

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.core.protobuf import encode
from mesh_pilot.envoy.filters.rbac.rules import NEVER, EnforcementPoint, RuleContext, policy
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.mesh.selection import selected
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.view import View

KIND = "AuthorizationPolicy"
DRY_RUN = "istio.io/dry-run"
"""The annotation of policies that are only tried: what they would do is counted and logged."""

Action = api.AuthorizationPolicyAction

_ACTIONS = {Action.ALLOW: RBAC.ALLOW, Action.DENY: RBAC.DENY, Action.AUDIT: RBAC.LOG, Action.CUSTOM: RBAC.DENY}
"""What Envoy calls it. The rules of CUSTOM only mark what is to be asked about; DENY is what marks."""


@attrs.frozen(cache_hash=True)
class Policies:
    """The policies for a proxy, by action; the oldest first, those of the root namespace before others."""

    custom: tuple[ConfigKey, ...] = ()
    audit: tuple[ConfigKey, ...] = ()
    deny: tuple[ConfigKey, ...] = ()
    allow: tuple[ConfigKey, ...] = ()


NONE = Policies()


@attrs.frozen
class Rules:
    """What policies of one action come to, encoded; None where there are none.

    No bytes are rules too: ALLOW with nothing that it allows.
    """

    enforced: bytes | None = None
    tried: bytes | None = None
    """Those in dry run."""

    def __bool__(self) -> bool:
        return self.enforced is not None or self.tried is not None


@derived
def policies_for(view: View, namespace: str, labels: Labels) -> Policies:
    """The policies for a proxy with these labels (of labels that no policy selects by it needs none)."""
    keys = selected(view, KIND, namespace, labels)
    if not keys:
        return NONE
    of: dict[Action, list[ConfigKey]] = {action: [] for action in Action}
    for key in keys:
        of[_action(view, key)].append(key)
    return Policies(*(tuple(of[a]) for a in (Action.CUSTOM, Action.AUDIT, Action.DENY, Action.ALLOW)))


@derived
def rules_of(view: View, keys: tuple[ConfigKey, ...], seer: EnforcementPoint) -> Rules:
    """The rules of policies of one action, for who is to look."""
    found: dict[bool, list[bytes]] = {}
    for key in keys:
        tried, rules = _rules(view, key, seer)
        found.setdefault(tried, [_head(view, key)]).append(rules)
    return Rules(*(b"".join(found[tried]) if tried in found else None for tried in (False, True)))


@derived
def _rules(view: View, key: ConfigKey, seer: EnforcementPoint) -> tuple[bool, bytes]:
    """The rules of one policy, as a part of an encoded ``RBAC``; and whether they are in dry run."""
    config = view.config(key)
    if config is None:
        return False, b""
    spec: api.AuthorizationPolicy = config.spec
    made = RBAC()
    prefix = "istio-ext-authz-" if spec.action == Action.CUSTOM else ""
    name = f"{prefix}ns[{key.namespace}]-policy[{key.name}]-rule"
    reader = RuleContext(key.namespace, _trust_domains(view), seer)
    for index, rule in enumerate(spec.rules):
        held = policy(rule, _ACTIONS[spec.action], reader)
        if held is not None:
            made.policies[f"{name}[{index}]"].CopyFrom(held)
    if not spec.rules:
        made.policies[f"{name}[0]"].CopyFrom(NEVER)
    return _is_dry_run(config), encode(made)


@derived
def _head(view: View, key: ConfigKey) -> bytes:
    """What an encoded ``RBAC`` of the policy's action begins with."""
    return encode(RBAC(action=_ACTIONS[_action(view, key)]))


@derived
def _action(view: View, key: ConfigKey) -> Action:
    config = view.config(key)
    spec: api.AuthorizationPolicy | None = config.spec if config else None
    return Action(spec.action) if spec else Action.ALLOW


def _is_dry_run(config: Config) -> bool:
    return config.annotations.get(DRY_RUN, "").lower() in ("true", "t", "1")


@derived
def _trust_domains(view: View) -> tuple[str, ...]:
    mesh = view.mesh()
    return tuple(dict.fromkeys((mesh.trust_domain, *mesh.trust_domain_aliases)))
