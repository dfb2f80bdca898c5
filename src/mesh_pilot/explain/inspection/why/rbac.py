"""RBAC filters: whether they would let a request in. Three answers: yes, no, and it depends on what is not known."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.matchers import Message, RequestFacts, header_condition, string_condition
from mesh_pilot.explain.inspection.why.request import WhyRequest
from mesh_pilot.model.redaction import redacted

NEAREST = 3
"""Rules of an ALLOW filter whose demands are told."""


@attrs.frozen
class RbacVerdict:
    """The verdict of one RBAC filter."""

    action: str
    """``ALLOW`` or ``DENY``: the meaning of a match."""
    admits: bool | None
    """None: it depends."""
    policies: tuple[str, ...]
    """The policies that match, or those that may; all of an ALLOW filter where none does."""
    unknown: tuple[str, ...] = ()
    """The facts that would decide."""
    reason: str = ""
    """The facts of a denied request, and what the rules want or deny; empty for another."""

    @property
    def text(self) -> str:
        named = ", ".join(map(rule_name, self.policies)) or "no policy"
        if self.admits is None:
            return f"{named} may match: it depends on {', '.join(self.unknown)}"
        if self.admits:
            return f"{named} allows it" if self.action == "ALLOW" else f"no {self.action} policy matches"
        return f"DENIED: {self.reason}"


def rule_name(policy: str) -> str:
    """``rule 0 of AuthorizationPolicy/shop/p`` for the policy ``ns[shop]-policy[p]-rule[0]``; others as they are."""
    found = re.fullmatch(r"(?:istio-ext-authz-)?ns\[(.*)\]-policy\[(.*)\]-rule\[(\d+)\]", policy)
    return f"rule {found[3]} of AuthorizationPolicy/{found[1]}/{found[2]}" if found else policy


@attrs.define
class _Evaluation:
    request: WhyRequest
    facts: RequestFacts | None
    unknown: list[str] = attrs.Factory(list)

    def unsure(self, what: str) -> None:
        if what not in self.unknown:
            self.unknown.append(what)


def rbac_verdicts(filters: Iterable[Message], request: WhyRequest, facts: RequestFacts | None) -> Iterator[RbacVerdict]:
    """The verdict of each RBAC filter among these, in order; a connection has no ``facts``."""
    for each in filters:
        config = each.get("typed_config", {})
        if str(config.get("@type", "")).endswith(".RBAC") and "rules" in config:
            yield rbac_verdict(config["rules"], request, facts)


def rbac_verdict(rules: Message, request: WhyRequest, facts: RequestFacts | None) -> RbacVerdict:
    """The verdict of an RBAC filter's rules."""
    # Three-valued logic: one policy that matches decides although others are unsure, and without one an unsure policy
    # leaves it open. An ALLOW filter admits what matches, a DENY filter what surely does not; LOG admits everything.
    action = str(rules.get("action", "ALLOW"))
    run = _Evaluation(request, facts)
    states = {name: _policy(run, policy) for name, policy in sorted(rules.get("policies", {}).items())}
    matched = tuple(name for name, state in states.items() if state)
    unsure = tuple(name for name, state in states.items() if state is None)
    found: bool | None = True if matched else None if unsure else False
    admits = found if action == "ALLOW" else not found if found is not None and action == "DENY" else None
    if action == "LOG":
        admits = True
    named = matched or unsure or (tuple(states) if action == "ALLOW" else ())
    reason = ""
    if admits is False:
        policies = {name: rules["policies"][name] for name in named}
        reason = _why_denied(run, policies) if matched else _why_not_allowed(run, policies)
    return RbacVerdict(action, admits, named, tuple(run.unknown) if found is None else (), reason)


def _policy(run: _Evaluation, policy: Message) -> bool | None:
    if "condition" in policy:
        run.unsure("a CEL condition")
        return None
    return _all(
        (
            _any(_permission(run, each) for each in policy.get("permissions", ())),
            _any(_principal(run, each) for each in policy.get("principals", ())),
        )
    )


def _any(states: Iterable[bool | None]) -> bool | None:
    found = list(states)
    return True if True in found else None if None in found else False


def _all(states: Iterable[bool | None]) -> bool | None:
    found = list(states)
    return False if False in found else None if None in found else True


def _not(state: bool | None) -> bool | None:
    return None if state is None else not state


def _only_field(rule: Message) -> tuple[str, Any]:
    return next(iter(rule.items()), ("any", True))


def _permission(run: _Evaluation, rule: Message) -> bool | None:
    kind, value = _only_field(rule)
    match kind:
        case "any":
            return True
        case "and_rules":
            return _all(_permission(run, each) for each in value.get("rules", ()))
        case "or_rules":
            return _any(_permission(run, each) for each in value.get("rules", ()))
        case "not_rule":
            return _not(_permission(run, value))
        case "destination_port":
            return run.request.port == int(value)
        case "destination_port_range":
            return int(value.get("start", 0)) <= run.request.port < int(value.get("end", 0))
        case "destination_ip":
            return _in_range(run, value, run.request.address, "the destination's address")
        case "requested_server_name":
            return string_condition("server name", value, run.request.server_name).is_met
        case _:
            return _common(run, kind, value)


def _principal(run: _Evaluation, rule: Message) -> bool | None:
    kind, value = _only_field(rule)
    match kind:
        case "any":
            return True
        case "and_ids":
            return _all(_principal(run, each) for each in value.get("ids", ()))
        case "or_ids":
            return _any(_principal(run, each) for each in value.get("ids", ()))
        case "not_id":
            return _not(_principal(run, value))
        case "authenticated":
            return _authenticated(run, value)
        case "direct_remote_ip" | "source_ip":
            return _in_range(run, value, run.request.source, "the client's address (--source-ip)")
        case "remote_ip":
            run.unsure("the client's address behind proxies")
            return None
        case _:
            return _common(run, kind, value)


def _authenticated(run: _Evaluation, value: Message) -> bool | None:
    if not run.request.mtls:
        return False
    if "principal_name" not in value:
        return True
    if not run.request.principal:
        run.unsure("the client's identity")
        return None
    return string_condition("principal", value["principal_name"], run.request.principal).is_met


def _common(run: _Evaluation, kind: str, value: Any) -> bool | None:
    if kind == "header" and run.facts is not None:
        return header_condition(value, run.facts).is_met
    if kind == "url_path" and run.facts is not None:
        return string_condition("path", value.get("path", {}), run.facts.bare_path).is_met
    run.unsure(_WORDS.get(kind, kind))
    return None


_WORDS = {
    "metadata": "claims of a token, or other metadata",
    "filter_state": "the peer's identity as a filter found it",
    "matcher": "a matcher that is not evaluated",
    "header": "headers of requests",
    "url_path": "paths of requests",
    "uri_template": "a template of paths",
}


def _in_range(run: _Evaluation, given: Mapping[str, Any], address: str, what: str) -> bool | None:
    if not address:
        run.unsure(what)
        return None
    network = ipaddress.ip_network(
        (str(given.get("address_prefix", "")), int(given.get("prefix_len", 0))), strict=False
    )
    return ipaddress.ip_address(address) in network


# -- the reasons of a denial


@attrs.frozen
class _Demand:
    """A condition that decides: what the request has, and what the rule wants."""

    has: str
    wants: str


def _why_denied(run: _Evaluation, policies: Mapping[str, Message]) -> str:
    """The rules that deny, and what of the request they name."""
    demands = [demand for policy in policies.values() for demand in _deciding(run, policy, met=True)]
    has = ", ".join(dict.fromkeys(demand.has for demand in demands))
    return f"{', '.join(map(rule_name, policies))} denies it" + (f": {has}" if has else "")


def _why_not_allowed(run: _Evaluation, policies: Mapping[str, Message]) -> str:
    """The facts of the request, and what the nearest rules want in their place."""
    if not policies:
        return "an ALLOW policy applies, and none has a rule that can match"
    demands = {name: _deciding(run, policy, met=False) for name, policy in policies.items()}
    nearest = sorted(demands, key=lambda name: len(demands[name]))[:NEAREST]
    has = ", ".join(dict.fromkeys(demand.has for name in nearest for demand in demands[name] if demand.has))
    parts = [
        f"{rule_name(name)} wants {' and '.join(dict.fromkeys(d.wants for d in demands[name]))}" for name in nearest
    ]
    if more := len(policies) - len(nearest):
        parts.append(f"{more} more do not match")
    return "; ".join(filter(None, (has, *parts)))


def _deciding(run: _Evaluation, policy: Message, *, met: bool) -> list[_Demand]:
    """The conditions of a policy because of which it matches, or does not."""
    found: list[_Demand] = []
    for is_caller, kind in ((True, "principals"), (False, "permissions")):
        found += _demands(run, {"or_ids" if is_caller else "or_rules": {"of": policy.get(kind, ())}}, is_caller, met)
    return found


def _demands(run: _Evaluation, rule: Message, is_caller: bool, met: bool) -> list[_Demand]:
    """The conditions because of which a rule is met, or is not."""
    # A conjunction that fails wants each of its members that fail; a disjunction that fails wants any of them, and one
    # that is met is so by its first member that is. A negation is the other way round.
    kind, value = _only_field(rule)
    evaluate = _principal if is_caller else _permission
    if kind.startswith(("and_", "or_")):
        members = [m for m in next(iter(value.values()), ()) if evaluate(run, m) is met]
        found = [_demands(run, member, is_caller, met) for member in members]
        if kind.startswith("and_") or len(found) < 2:
            return [demand for each in found for demand in each]
        return found[0] if met else [_any_of(found)]
    if kind.startswith("not_"):
        demands = _demands(run, value, is_caller, not met)
        return (
            demands if met else [attrs.evolve(d, wants=f"not {d.wants}") for d in demands] or [_Demand("", "nothing")]
        )
    if kind == "any":
        return []
    return [_principal_demand(run, kind, value) if is_caller else _permission_demand(run, kind, value)]


def _any_of(alternatives: Sequence[Sequence[_Demand]]) -> _Demand:
    has = dict.fromkeys(demand.has for each in alternatives for demand in each)
    wants = [*dict.fromkeys(" and ".join(demand.wants for demand in each) for each in alternatives)]
    return _Demand(", ".join(has), " or ".join([*wants[:NEAREST], *(["others"] if len(wants) > NEAREST else [])]))


def _principal_demand(run: _Evaluation, kind: str, value: Any) -> _Demand:
    request = run.request
    match kind:
        case "authenticated":
            has = f"the caller is {request.principal or 'not known'}" if request.mtls else "the caller has no identity"
            if not request.mtls:
                has += ": it does not come by mTLS"
            return _Demand(has, identity_words(value.get("principal_name")))
        case "direct_remote_ip" | "source_ip":
            return _Demand(f"the caller's address is {request.source or 'not known'}", f"the address {_subnet(value)}")
        case "remote_ip":
            return _Demand("", f"the original address {_subnet(value)}")
        case _:
            return _common_demand(run, kind, value)


def _permission_demand(run: _Evaluation, kind: str, value: Any) -> _Demand:
    request = run.request
    match kind:
        case "destination_port":
            return _Demand(f"the port is {request.port}", f"port {value}")
        case "destination_port_range":
            last = int(value.get("end", 0)) - 1
            return _Demand(f"the port is {request.port}", f"a port from {value.get('start', 0)} to {last}")
        case "destination_ip":
            return _Demand(
                f"it goes to {request.address or 'an address that is not known'}", f"one of {_subnet(value)}"
            )
        case "requested_server_name":
            found = string_condition("the server name", value, request.server_name)
            return _Demand(f"the server name is {found.found}", f"that {found.text}")
        case _:
            return _common_demand(run, kind, value)


def _common_demand(run: _Evaluation, kind: str, value: Any) -> _Demand:
    if run.facts is not None and kind in ("header", "url_path"):
        if kind == "header":
            name = str(value.get("name", ""))
            found, subject = header_condition(value, run.facts), _HEADERS.get(name, f"the header {name}")
            text = found.text.replace(f"header {name}", subject)
            if redacted({name: "value"})[name] != "value":
                return _Demand(
                    f"{subject} is {'there' if run.facts.header(name) else 'none'}", f"another value of {name}"
                )
        else:
            subject = "the path"
            found = string_condition(subject, value.get("path", {}), run.facts.bare_path)
            text = found.text
        return _Demand(f"{subject} is {found.found}", f"that {text}")
    return _Demand("", f"something about {_WORDS.get(kind, kind)}")


_HEADERS = {":method": "the method", ":authority": "the host", ":path": "the path"}


def _subnet(value: Message) -> str:
    return f"{value.get('address_prefix', '')}/{value.get('prefix_len', 0)}"


_FORMS = (
    (r"\.\*/ns/(.+)/\.\*", "an identity of namespace {0}"),
    (r"spiffe://\.\+/ns/(.+)/\(\.\+/\|\)sa/(.+)\(/\.\+\)\?", "the service account {0}/{1}"),
    (r"spiffe://(.+)/\.\*", "an identity of trust domain {0}"),
    (r"spiffe://\.\*(.+)", "an identity that ends with {0}"),
    (r"\.\+", "any identity"),
)
"""The forms of regular expressions in principals, as ``envoy.filters.rbac.principals`` writes them."""


def identity_words(matcher: Message | None) -> str:
    """A matcher of identities in words."""
    if matcher is None:
        return "any identity"
    if "exact" in matcher:
        return str(matcher["exact"])
    if "prefix" in matcher:
        return f"{matcher['prefix']}*"
    pattern = str(matcher.get("safe_regex", {}).get("regex", ""))
    for form, words in _FORMS:
        if (found := re.fullmatch(form, pattern)) is not None:
            return words.format(*(re.sub(r"\\(.)", r"\1", part.replace(".*", "*")) for part in found.groups()))
    return string_condition("an identity that", matcher, "").text
