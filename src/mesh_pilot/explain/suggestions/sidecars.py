"""A Sidecar for each workload, which imports what it called.

Workloads that no label tells from others share a Sidecar without a selector: the namespace's default, which imports
what any workload of the namespace called. Gateways have none: Sidecars do not apply to them.

Sidecars of users are left as they are. One that selects a workload is all that a workload has, so nothing is suggested
for it; what one without a selector says, of a namespace or the mesh, a suggestion says too, but for what it imports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.needs import CALLED, Needed, Needs
from mesh_pilot.explain.suggestions.observed import Observed, Skipped, Suggestion, Suggestions
from mesh_pilot.explain.suggestions.workloads import (
    KeyedProxy,
    SelectedWorkloads,
    WorkloadSelectors,
    free_name,
    keyed_proxies,
    named,
)
from mesh_pilot.mesh.names.resources import PASSTHROUGH, REQUESTED_HOST
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.world.view import View

API_VERSION = "networking.istio.io/v1"
DEFAULT = "default"
"""The name of a namespace's Sidecar, as Istio's documentation calls it."""


def suggest_sidecars(view: View, proxies: Sequence[ConnectedProxy], seen: Observed, namespace: str = "") -> Suggestions:
    """The Sidecars for the workloads of a namespace, or of all."""
    return _Sidecars(view, proxies, seen).suggestions(namespace)


class _Sidecars:
    """Mutable state: what was found so far, and the names that are taken."""

    def __init__(self, view: View, proxies: Sequence[ConnectedProxy], seen: Observed) -> None:
        self._view = view
        self._seen = seen
        self._proxies = keyed_proxies(view, proxies, seen)
        self._needs = Needs(view)
        self._taken = {config.key for config in view.all_configs("Sidecar")}
        self._objects: list[Suggestion] = []
        self._skipped: list[Skipped] = []

    def suggestions(self, namespace: str) -> Suggestions:
        selectors = WorkloadSelectors(self._seen, self._proxies)
        selecting = [each for each in selectors.groups(namespace) if self._suggest(each)]
        for where in dict.fromkeys(each.namespace for each in selectors.without_labels(namespace)):
            self._suggest_default(where, [each for each in selecting if each.namespace == where])
        return Suggestions(self._objects, self._skipped)

    def _suggest(self, group: SelectedWorkloads) -> bool:
        """A Sidecar for the workloads of a selector; False, and a reason, otherwise."""
        reason = self._reason_against(group.proxies, group.silent) or self._reason_of_selectors(group.proxies)
        if reason:
            self._skipped.append(Skipped(group.name, reason))
            return False
        name = free_name(group.members[0].name, group.namespace, "Sidecar", self._taken)
        self._add(name, group, group.proxies)
        return True

    def _suggest_default(self, namespace: str, selecting: Sequence[SelectedWorkloads]) -> None:
        """The Sidecar without a selector, for what no other Sidecar selects."""
        apart = {each.proxy.id for group in selecting for each in group.proxies}
        here = [e for e in self._proxies if e.is_sidecar and e.proxy.namespace == namespace]
        left = [each for each in here if each.proxy.id not in apart and not self._selecting(each)]
        own = next((key for each in left if (key := each.keys.scope.sidecar) and key.namespace == namespace), None)
        # Beyond what speaks against any Sidecar: the namespace may have a default; the root namespace's is the mesh's.
        reason = self._reason_against(left, [each.proxy.name for each in left if each.workload is None])
        if namespace == self._view.root_namespace:
            reason = "in the root namespace that would be every workload's"
        elif own is not None:
            reason = f"{own} is the namespace's default already"
        if reason:
            self._skipped.append(Skipped(namespace, f"workloads without labels share a Sidecar, and {reason}"))
            return
        members = [each for each in self._seen.workloads() if each.namespace == namespace]
        group = SelectedWorkloads(namespace, frozenset(), members, left)
        self._add(free_name(DEFAULT, namespace, "Sidecar", self._taken), group, here)

    def _selecting(self, proxy: KeyedProxy) -> ConfigKey | None:
        """The Sidecar that selects a proxy by its labels."""
        key = proxy.keys.scope.sidecar
        config = self._view.config(key) if key is not None else None
        is_general = config is None or config.spec.workload_selector is None or not config.spec.workload_selector.labels
        return None if is_general else key

    def _reason_against(self, proxies: Sequence[KeyedProxy], silent: Sequence[str]) -> str:
        """The reason why nothing can be said of proxies."""
        if not proxies:
            return "no proxy of it is connected"
        if silent:
            return f"{named(silent)} {'does not report its' if len(silent) == 1 else 'do not report their'} calls"
        for key in {each.keys.scope.sidecar for each in proxies} - {None}:
            config = self._view.config(key) if key is not None else None
            if config is not None and not _is_plain(config.spec.egress):
                return f"{key} has egress listeners with a port, an address or a capture mode"
        return ""

    def _reason_of_selectors(self, proxies: Iterable[KeyedProxy]) -> str:
        selecting = sorted({str(key) for each in proxies if (key := self._selecting(each)) is not None})
        return f"{named(selecting)} selects it already" if selecting else ""

    def _add(self, key: ConfigKey, group: SelectedWorkloads, looked_at: Iterable[KeyedProxy]) -> None:
        """Add the Sidecar of a group. ``looked_at``: the proxies in whose scopes the calls were made."""
        calls = {cluster.host for member in group.members for cluster in self._seen.calls.get(member, ())}
        scopes = dict.fromkeys(each.keys.scope for each in looked_at)
        hosts = self._imports(scopes, calls, group.namespace)
        base = next((self._view.config(scope.sidecar) for scope in scopes if scope.sidecar), None)
        spec = replace(base.spec) if base is not None else api.Sidecar()
        spec.workload_selector = api.WorkloadSelector(labels=dict(sorted(group.selector))) if group.selector else None
        spec.egress = [api.IstioEgressListener(hosts=[*hosts] or ["~/*"])]
        self._taken.add(key)
        notes = [*self._notes(group, base, calls, hosts)]
        reasons = {host: why for host, why in hosts.items() if why != CALLED}
        config = Config(key, spec, api_version=API_VERSION, origin=Origin("suggestion"))
        self._objects.append(Suggestion(config, reasons, notes, tuple(each.proxy.name for each in group.proxies)))

    def _imports(self, scopes: Iterable[OutboundScope], calls: Collection[str], namespace: str) -> dict[str, str]:
        """The hosts to import, as a Sidecar of a namespace names them, each with its reason."""
        needed: dict[Needed, str] = {}
        for scope in scopes:
            for need, why in self._needs.of(scope, calls).items():
                needed[need] = why if needed.get(need, why) != CALLED else CALLED
        return dict(sorted((_import(need, namespace), why) for need, why in needed.items()))

    def _notes(
        self, group: SelectedWorkloads, base: Config | None, calls: Collection[str], hosts: Collection[str]
    ) -> Iterable[str]:
        if len(group.members) > 1:
            names = sorted({each.name for each in group.members})
            yield f"For {named(names)}: one selector finds all of them." if group.selector else f"For {named(names)}."
        if not calls:
            yield "It called nothing."
        if base is not None:
            yield f"It takes the place of {base.key}, and says all that this says but for what it imports."
        unknown = [each for each in group.members if self._seen.used(each, PASSTHROUGH, REQUESTED_HOST)]
        if unknown:
            yield (
                "It calls hosts that the mesh does not know, and nothing counts which: outboundTrafficPolicy must stay"
                " as it is."
            )
        gone = sorted(host for host in calls if not any(each.endswith(f"/{host}") for each in hosts))
        if gone:
            yield f"It called {named(gone)}, which it does not see any more."


def _is_plain(egress: Sequence[api.IstioEgressListener]) -> bool:
    """True for what imports hosts for all ports at once, or says nothing."""
    return not egress or (
        len(egress) == 1
        and egress[0].port is None
        and not egress[0].bind
        and egress[0].capture_mode == api.CaptureMode.DEFAULT
    )


def _import(need: Needed, namespace: str) -> str:
    return f"{'.' if need[0] == namespace else need[0]}/{need[1]}"
