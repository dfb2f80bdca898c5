"""Permissions of Kuma as AuthorizationPolicies: what each service lets in, worked out as Kuma does.

Where a mesh has mutual TLS, everything is denied that no permission allows. A policy for some proxies counts before one
for all, and in a policy the last item that a client matches. Istio's ALLOW policies add up instead, so that the result
for each service is said, not each policy. What can't be said lets no client in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.making import SECURITY, make
from mesh_pilot.migration.base.names import object_name
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.migration.kuma.resources import SERVICE_TAG, KumaResource
from mesh_pilot.migration.kuma.services import MeshServices, label_value
from mesh_pilot.migration.kuma.targets import ANY, matches, selected_labels

NOBODY = "allow-nothing"
"""The policy without rules that makes everything denied which no other allows."""

_EVERYBODY = "kuma-permissions"
_SCHEME = "spiffe://"


@attrs.frozen
class ClientJudgement:
    """A client, or all of the mesh, that may call or may not."""

    source: str
    """A service; ``*``: all of the mesh."""
    allows: bool


@attrs.frozen
class AllowedCallers:
    """The callers that a service lets in."""

    rest: bool = False
    """True if every caller may but the exceptions; false: only these."""
    exceptions: frozenset[str] = frozenset()

    def rules(self, namespace: str, trust: str = "cluster.local") -> list[Spec]:
        principals = [f"{trust}/ns/{namespace}/sa/{name}" for name in sorted(self.exceptions)]
        if self.rest:
            source: Spec = {"namespaces": [namespace]}
            return [{"from": [{"source": {**source, **({"notPrincipals": principals} if principals else {})}}]}]
        return [{"from": [{"source": {"principals": principals}}]}] if principals else []


class Permissions:
    """State: the judgements of each service by the policies that were taken."""

    def __init__(self, record: MigrationRecord, services: MeshServices) -> None:
        self._record = record
        self._services = services
        self._judged: list[tuple[tuple[int, str], frozenset[str] | None, list[ClientJudgement]]] = []
        """How specific a policy is, the services that it is for (None: all), and what it says."""
        self._resources: list[KumaResource] = []

    def put(self, resource: KumaResource) -> None:
        """Take a MeshTrafficPermission or a TrafficPermission."""
        self._resources.append(resource)
        if resource.type == "TrafficPermission":
            self._put_old(resource)
        else:
            self._put_new(resource)
        resource.fields.finish({})

    def finish(self, *, has_mtls: bool) -> None:
        """Make the policies."""
        if not has_mtls:
            for resource in self._resources:
                reason = "the mesh has no mutual TLS, without which permissions have no effect in Kuma"
                self._record.leave(resource.where, resource.object, "", reason, "write AuthorizationPolicies")
            return
        namespace, made_from = self._services.namespace, tuple(each.object for each in self._resources)
        where = self._resources[0].where if self._resources else ""
        nobody = document(SECURITY, "AuthorizationPolicy", namespace, NOBODY, {})
        make(self._record, nobody, made_from or (f"Mesh/{self._services.mesh}",), where)
        names = [name for name, service in sorted(self._services.services.items()) if service.selector]
        grants = {name: self._grant(name) for name in names}
        general = self._grant(None)
        if all(grant == general for grant in grants.values()):
            self._make(_EVERYBODY, {}, general, made_from, where)
            return
        for name, grant in grants.items():
            selector = {"selector": {"matchLabels": {SERVICE_TAG: label_value(name)}}}
            self._make(object_name(name), selector, grant, made_from, where)
        reason = "each service has its own policy; a service that comes later admits no client until it has one"
        self._record.change(f"permissions of {self._services.mesh}", reason)

    # -- inside

    def _make(self, name: str, selector: Spec, grant: AllowedCallers, made_from: Sequence[str], where: str) -> None:
        if rules := grant.rules(self._services.namespace):
            spec = {**selector, "action": "ALLOW", "rules": rules}
            made = document(SECURITY, "AuthorizationPolicy", self._services.namespace, name, spec)
            make(self._record, made, made_from, where)

    def _grant(self, service: str | None) -> AllowedCallers:
        """The callers of a service; None: one that no policy is about in particular."""
        allowed: dict[str, bool] = {}
        rest = False
        for _, services, judgements in sorted(self._judged, key=lambda each: each[0]):
            if services is not None and service not in services:
                continue
            for judgement in judgements:
                if judgement.source == ANY:
                    rest = judgement.allows
                    allowed.clear()
                else:
                    allowed[judgement.source] = judgement.allows
        return AllowedCallers(rest, frozenset(name for name, allows in allowed.items() if allows != rest))

    def _put_new(self, resource: KumaResource) -> None:
        target = selected_labels(resource.fields.part("targetRef"))
        judgements: list[ClientJudgement] = []
        for item in resource.fields.parts("from"):
            action = item.part("default").text("action")
            if action.upper() not in ("ALLOW", "DENY", "ALLOWWITHSHADOWDENY", "DENY_WITH_SHADOW_ALLOW"):
                item.leave("default", f"{action!r} is not an action that is known; it admits no client")
            if action == "AllowWithShadowDeny":
                item.leave("default", "is taken as Allow: what would be denied is not logged", "see envoy.filters rbac")
            judgements += self._sources(item.part("targetRef"), allows=action.upper().startswith("ALLOW"))
        for rule in resource.fields.parts("rules"):
            judgements += self._identities(rule.part("default"))
        # What can't be said lets nobody in: where the target is unknown or wider than what it selects, only denials are
        # kept.
        if target is None:
            resource.fields.leave("targetRef", "can't be said: what it allows is denied", "write the policy yourself")
            judgements = [each for each in judgements if not each.allows]
            self._judge(0, resource, None, judgements or [ClientJudgement(ANY, False)])
            return
        labels, rank = target
        services: frozenset[str] | None = None
        if labels:
            some, every = self._services.with_labels(dict(labels))
            if named := dict(labels).get(SERVICE_TAG):
                some |= {name for name in (*self._services.names(), named) if label_value(name) == named}
                every = every or some
            services = frozenset(some)
            if some - every:
                reason = (
                    f"selects some instances of {', '.join(sorted(some - every))} only; it is taken for all of them"
                )
                resource.fields.leave("targetRef", reason, "write the policy yourself, with these labels")
                judgements = [each for each in judgements if not each.allows] or [ClientJudgement(ANY, False)]
        self._judge(rank, resource, services, judgements)

    def _put_old(self, resource: KumaResource) -> None:
        judgements: list[ClientJudgement] = []
        for source in matches(resource.fields, "sources"):
            judgements += self._tagged(resource.fields, "sources", source, allows=True)
        for destination in matches(resource.fields, "destinations"):
            name = destination.get(SERVICE_TAG, ANY)
            if destination.keys() - {SERVICE_TAG}:
                reason = "is for some instances of a service only; it is not taken"
                resource.fields.leave("destinations", reason, "write an AuthorizationPolicy with these labels")
                continue
            # Of the old form, the most specific policy counts alone.
            alone = [ClientJudgement(ANY, False), *judgements] if name != ANY else judgements
            self._judge(int(name != ANY), resource, None if name == ANY else frozenset((name,)), alone)

    def _judge(
        self, rank: int, resource: KumaResource, services: frozenset[str] | None, judgements: Iterable[ClientJudgement]
    ) -> None:
        # Of policies that are equally specific that of the first name counts, so it is laid last.
        backwards = "".join(chr(0x10FFFF - ord(c)) for c in resource.name)
        self._judged.append(((rank, backwards), services, list(judgements)))

    def _sources(self, ref: ForeignFields, *, allows: bool) -> list[ClientJudgement]:
        selected = selected_labels(ref)
        if selected is None:
            return [] if allows else [ClientJudgement(ANY, False)]
        return self._tagged(ref, "", dict(selected[0]), allows=allows)

    def _tagged(
        self, fields: ForeignFields, name: str, tags: Mapping[str, str], *, allows: bool
    ) -> list[ClientJudgement]:
        """The judgement of clients with these tags. An identity has the name of its service only."""
        tags = {key: value for key, value in tags.items() if value != ANY}
        if not tags:
            return [ClientJudgement(ANY, allows)]
        if tags.keys() == {SERVICE_TAG}:
            return [ClientJudgement(tags[SERVICE_TAG], allows)]
        some, every = self._services.with_labels(tags)
        said = every if allows else some
        if some != every or not some:
            reason = "an identity says the service of a client, and no tags"
            taken = f"taken for {', '.join(sorted(said)) or 'nobody'}" if allows or some else "everybody is denied"
            fields.leave(name, f"{reason}; {taken}", "give these clients their own account")
        if not some and not allows:
            return [ClientJudgement(ANY, False)]
        return [ClientJudgement(service, allows) for service in sorted(said)]

    def _identities(self, conf: ForeignFields) -> list[ClientJudgement]:
        """The judgements of a list of SPIFFE ids; where one that is denied can't be said, everybody is."""
        denied, allowed = conf.parts("deny"), [*conf.parts("allow"), *conf.parts("allowWithShadowDeny")]
        found: list[ClientJudgement] = []
        for item in allowed:
            if (source := self._identity(item)) is not None:
                found.append(ClientJudgement(source, True))
        for item in denied:
            source = self._identity(item)
            found.append(ClientJudgement(source or ANY, False))
        # What denies everybody clears what was allowed, and a denied service stays denied.
        return found

    def _identity(self, item: ForeignFields) -> str | None:
        spiffe = item.part("spiffeID")
        kind, value = spiffe.text("type"), spiffe.text("value")
        trust, _, name = value.removeprefix(_SCHEME).partition("/")
        if item.names() != ["spiffeID"] or not value.startswith(_SCHEME) or trust != self._services.mesh:
            item.leave(
                "", "names an identity that does not belong to a service of this mesh", "write an AuthorizationPolicy"
            )
            item.pass_over(*item.names())
            return None
        if kind == "Prefix" and not name:
            return ANY
        if kind == "Exact" and name and "/" not in name:
            return name
        item.leave(
            "", "names an identity that does not belong to a service of this mesh", "write an AuthorizationPolicy"
        )
        return None
