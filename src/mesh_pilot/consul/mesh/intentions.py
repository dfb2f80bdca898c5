"""Intentions, and the AuthorizationPolicy that they are for a service.

Intentions of a service are judged as Consul does: those of its name before those of ``*``, in each those of a
source's name before those of ``*``; the first one that matches the source decides, and the default policy if none does.

The policy says what is denied (action DENY), so that policies of several services next to one proxy, and those of
users, add up; it holds for the ports of the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.base.reading import as_objects, member
from mesh_pilot.consul.mesh.entries import IGNORE
from mesh_pilot.consul.mesh.fields import DEFAULT_TENANT, Fields, Tenant
from mesh_pilot.consul.mesh.permissions import IntentionPermission, Region, denied_regions, read_permissions, rule_parts
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, Spec, object_name, selecting_labels
from mesh_pilot.model.config import Problem, Severity
from mesh_pilot.model.spiffe import SCHEME, workload_path

INTENTION = "intention"
"""The kind of an EntryRef that names the destination of intentions."""

ANY = "*"
TRUST_DOMAIN = "cluster.local"
"""The mesh's own trust domain, whatever it is called."""

MAX_PORTS = 8
"""Ports that a policy names; with more, it holds for all ports of the proxy."""


@attrs.frozen
class Intention:
    """A source that may call a destination, or may not."""

    source: str
    destination: str
    allows: bool
    permissions: tuple[IntentionPermission, ...] = ()
    """The judgements of its requests one by one; empty: there are none."""

    @property
    def ref(self) -> EntryRef:
        return EntryRef(INTENTION, self.destination)


def read_intentions(
    data: object, tenant: Tenant = DEFAULT_TENANT
) -> tuple[list[Intention], dict[EntryRef, list[Problem]]]:
    """The intentions of an answer of Consul (``/v1/connect/intentions``), and problems by destination."""
    found = []
    problems: dict[EntryRef, list[Problem]] = {}
    for each in as_objects(data):
        if _is_ignored(each):
            continue
        noted: list[Problem] = []
        fields = Fields(each, "", noted, tenant)
        source, destination = fields.text("SourceName"), fields.text("DestinationName")
        intention = _intention(fields, source, destination)
        if intention is not None and tenant.has("DestinationNS", fields.text("DestinationNS")):
            found.append(intention)
        fields.finish(_NEEDLESS)
        if noted:
            where = f"{source} => {destination}"
            named = [attrs.evolve(p, path=f"{where}: {p.path}" if p.path else where) for p in noted]
            problems.setdefault(EntryRef(INTENTION, destination), []).extend(named)
    return found, problems


def _is_ignored(data: Mapping[str, object]) -> bool:
    meta = data.get("Meta") or data.get("LegacyMeta")
    return bool(member(meta, IGNORE) == "ignore")


_NEEDLESS: Mapping[str, str | None] = dict.fromkeys(
    (
        "description",
        "sourcetype",
        "type",
        "precedence",
        "createdat",
        "updatedat",
        "legacycreatetime",
        "legacyupdatetime",
    )
)
"""Fields that need no counterpart."""


def _intention(fields: Fields, source: str, destination: str) -> Intention | None:
    for name in ("SourceNS", "SourcePartition", "DestinationPartition", "SourcePeer", "SourceSamenessGroup"):
        if not fields.tenant.has(name, value := fields.text(name)):
            fields.problem(name, f"{value!r} is not read; the intention has no effect")
            return None
    if tenant := fields.other_tenant():
        fields.problem("", f"names {tenant}, which is not read; the intention has no effect")
        return None
    permissions = fields.parts("Permissions")
    for permission in permissions:
        if permission.part("JWT") is not None:
            permission.warn("JWT", "write a RequestAuthentication, and an AuthorizationPolicy with requestPrincipals")
    read = read_permissions(permissions)
    if not source or not destination or (not permissions and fields.text("Action") not in ("allow", "deny")):
        fields.problem("Action", "an intention has a source, a destination, and an action: allow or deny")
        return None
    # If no permission of several can be said, everything is as if none had matched.
    return Intention(source, destination, fields.text("Action") == "allow", read or _never(permissions))


def _never(permissions: Sequence[Fields]) -> tuple[IntentionPermission, ...]:
    return (IntentionPermission(False, ()),) if permissions else ()


def authorization_policy(
    service: str, intentions: Iterable[Intention], reader: EntryReader, *, default_allow: bool
) -> tuple[IstioObject | None, tuple[Problem, ...]]:
    """The policy that the intentions of a service, and of ``*``, are; None if they deny nothing."""
    problems: list[Problem] = []
    ordered = sorted(intentions, key=lambda each: (each.destination == ANY, each.source == ANY, each.source))
    exact: dict[str, Intention] = {}
    rest: Intention | None = None
    for each in ordered:
        if each.source == ANY:
            rest = each
            break
        exact.setdefault(each.source, each)
    # All rules are denials. Consul lets the most exact intention win, while Istio's policies add up: so the intention
    # for all sources becomes a rule for those that no other intention names (`notPrincipals`).
    operation: Spec = {}
    ports = reader.ports(service)
    if 0 < len(ports) <= MAX_PORTS:
        operation["ports"] = [str(port) for port in ports]
    rules: list[Spec] = []
    for source, intention in exact.items():
        principals = _principals(source, reader)
        regions = _denied(intention, default_allow, problems)
        rules += (_rule({"principals": principals}, operation, region) for region in regions)
    known = [principal for source in exact for principal in _principals(source, reader)]
    others: Spec = {"notPrincipals": known} if known else {}
    denied = _denied(rest, default_allow, problems)
    rules += (_rule(others, operation, region) for region in denied)
    if rest is not None and not default_allow and () not in denied:
        rules.append(_rule({"notPrincipals": [ANY]}, operation, ()))
    labels = selecting_labels(service)
    if not rules:
        return None, tuple(problems)
    if labels is None:
        problems.append(Problem("", f"the name {service!r} is too long for a label; its intentions have no effect"))
        return None, tuple(problems)
    spec = {"action": "DENY", "selector": {"matchLabels": labels}, "rules": rules}
    used = dict.fromkeys(each.ref for each in (*exact.values(), *([rest] if rest else [])))
    entries = tuple(used) or (EntryRef(INTENTION, service),)
    return (
        IstioObject("AuthorizationPolicy", reader.namespace(service), object_name(service), spec, entries),
        tuple(problems),
    )


def _denied(intention: Intention | None, default_allow: bool, problems: list[Problem]) -> list[Region]:
    if intention is None:
        return [] if default_allow else [()]
    if not intention.permissions:
        return [] if intention.allows else [()]
    regions = denied_regions(intention.permissions, default_allow=default_allow)
    if regions is None:
        where = f"{intention.source} => {intention.destination}"
        reason = "so many permissions can't be said as a policy; everything from this source is denied"
        problems.append(Problem(f"{where}: Permissions", reason, Severity.ERROR))
        return [()]
    return regions


def _rule(source: Spec, operation: Spec, region: Region) -> Spec:
    tests, conditions = rule_parts(region)
    merged = {**operation, **tests}
    rule: Spec = {}
    rule |= {"from": [{"source": source}]} if source else {}
    rule |= {"to": [{"operation": merged}]} if merged else {}
    rule |= {"when": conditions} if conditions else {}
    return rule


def _principals(source: str, reader: EntryReader) -> list[str]:
    namespace = reader.namespace(source)
    found = []
    for account in reader.accounts(source):
        if account.startswith(SCHEME):
            found.append(account.removeprefix(SCHEME))
        else:
            path = account if "/" in account else workload_path(namespace, account)
            found.append(f"{TRUST_DOMAIN}/{path}")
    # Consul's intentions hold for callers of all its datacenters. Listeners let in ids of its trust domain and of the
    # default namespace alone, and no id of ours ends so.
    return [*found, f"*/svc/{source}"] if reader.settings.trust_domain else found
