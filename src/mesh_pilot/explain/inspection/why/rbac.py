"""RBAC filters: whether they would let a request in. Three answers: yes, no, and it depends on what is not known."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.matchers import Message, RequestFacts, header_condition, string_condition
from mesh_pilot.explain.inspection.why.request import WhyRequest


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


@attrs.define
class _Evaluation:
    request: WhyRequest
    facts: RequestFacts | None
    unknown: list[str] = attrs.Factory(list)

    def unsure(self, what: str) -> None:
        if what not in self.unknown:
            self.unknown.append(what)


def rbac_verdicts(filters: Iterable[Message], request: WhyRequest, facts: RequestFacts | None) -> Iterator[RbacVerdict]:
    """The verdict of each RBAC filter among these, in order; ``facts`` is None for connections."""
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
    return RbacVerdict(action, admits, named, tuple(run.unknown) if found is None else ())


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
