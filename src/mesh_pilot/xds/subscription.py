"""One type on one stream: what the client asked for, what it was sent, and what it should be sent next.

The rules are those of Envoy's "xDS REST and gRPC protocol" document. What differs between the variants is how names
are asked for (``want`` and ``change``) and what a response holds: only what changed, or, for CDS and LDS of the State
of the World, everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds, check
from mesh_pilot.model.resource import CLUSTER, LISTENER, SHORT, Resource
from mesh_pilot.xds.held import EMPTY, State, content_digest, recall
from mesh_pilot.xds.messages import Response, Variant
from mesh_pilot.xds.phase import Phase, SubscriptionStatistics
from mesh_pilot.xds.plan import Draft, Plan, Refusal
from mesh_pilot.xds.sets import ResourceSet
from mesh_pilot.xds.shared import (
    NO_NAMES,
    WILDCARD,
    Content,
    after,
    believed,
    content,
    differing,
    goal,
    joined,
    moved,
    offer,
    renamed,
    wanted,
    without,
)

FEW = 8
"""Names so many that come or go are looked up one by one; more are looked at with all the others, which is shared."""

MANY = 8
"""Or the share of all names, 1/8, up to which that is still less than to look at all of them."""


class Subscription:
    """One type of one stream.

    Mutable state: what is wanted (``wildcard``, ``names``), what there is of that (``_aim``), what the client was sent
    (``held``), which names differ between the two (``_dirty``), must be answered (``_asked``) or were refused
    (``_doubt``), and the response that waits for its ACK (``outstanding``). Whatever grows with the mesh is immutable,
    and the same object for all streams in the same state.
    """

    def __init__(self, type_url: str, variant: Variant, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.type_url = type_url
        self.variant = variant
        self._bounds = bounds
        self.whole_state = variant is Variant.SOTW and type_url in (CLUSTER, LISTENER)
        """Whether each response holds everything, so that what is not in it is gone."""
        self._removes = variant is Variant.DELTA
        """Whether responses name what is gone."""
        self.wildcard = False
        self.names: frozenset[str] = frozenset()
        self.held: State = EMPTY
        self.outstanding: Response | None = None
        self.nonce = ""
        self.version = ""
        self.acked_nonce = ""
        self.acked_version = ""
        self.phase = Phase.IDLE
        self._explicit = False
        self._answer_due = False
        self._dirty = NO_NAMES
        self._asked = NO_NAMES
        self._doubt: dict[str, Refusal] = {}
        self._dropped_by_stale = NO_NAMES
        self._source: ResourceSet | None = None
        """What ``_aim`` was taken from; None: look at everything."""
        self._revision = -1
        self._aim: State = EMPTY
        self._aimed: frozenset[str] = NO_NAMES
        """The names that ``_aim`` was taken for."""

    def __repr__(self) -> str:
        wanted = "*" if self.wildcard else f"{len(self.names)} names"
        version = f" {self.version[:8]}" if self.version else ""
        return f"<{SHORT[self.type_url]} {wanted} {self.phase.value}{version} {len(self._dirty)} dirty>"

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            type_url=self.type_url,
            phase=self.phase,
            wildcard=self.wildcard,
            names=len(self.names),
            held=len(self.held.entries),
            version=self.version,
            nonce=self.nonce,
            acked_version=self.acked_version,
            acked_nonce=self.acked_nonce,
            in_doubt=len(self._doubt),
        )

    # -- what the client asks for

    def want(self, names: tuple[str, ...]) -> None:
        """State of the World: these names are all that is wanted now.

        No names at all mean everything as long as there never were any; later they mean nothing. Raises BoundError.
        """
        if names:
            self._explicit = True
        now = wanted(names)
        wildcard = now.wildcard or not self._explicit
        if wildcard == self.wildcard and now.names == self.names and not self._dropped_by_stale:
            return
        new, lost = without(now.names, self.names), without(self.names, now.names)
        self._check(len(now.names), new)
        self.names = now.names
        self._asked = joined(self._asked, new)
        self._set_wildcard(wildcard)
        self._lose(lost)
        self._asked = joined(self._asked, frozenset(filter(self.is_wanted, self._dropped_by_stale)))
        self._dropped_by_stale = NO_NAMES

    def _check(self, count: int, names: Collection[str]) -> None:
        """Raises BoundError for too many names together, or for one that is too long."""
        check(self._bounds, "max_names", f"names in the subscription to {SHORT[self.type_url]}", count)
        if names:
            check(self._bounds, "max_name_length", "characters in a resource name", max(map(len, names)))

    def drop_by_stale(self, names: tuple[str, ...]) -> None:
        """State of the World: a stale request did not name everything, so the client has let go of some.

        If it names them in its next request, it has to be sent them again.
        """
        self._explicit = self._explicit or bool(names)
        now = wanted(names)
        self._dropped_by_stale = joined(self._dropped_by_stale, without(self.names, now.names))
        if self._explicit and not now.wildcard and self.wildcard:
            self._dropped_by_stale = joined(self._dropped_by_stale, self._aim.names)

    def change(self, subscribe: Collection[str], unsubscribe: Collection[str], *, first: bool) -> None:
        """Delta: start and stop wanting names; one in both lists is asked for again.

        The ``first`` request of a type means everything when it has no names at all. Raises BoundError.
        """
        if first and not subscribe and not unsubscribe:
            self._set_wildcard(True)
        if not subscribe and not unsubscribe:
            return
        new = wanted(tuple(subscribe))
        stopped = frozenset(unsubscribe).difference(subscribe)
        if WILDCARD in stopped:
            self._set_wildcard(False)
        if new.wildcard:
            if self.wildcard:
                self._asked = joined(self._asked, self._aim.names | self.held.names)
            elif self.outstanding is not None:  # the client may take what is under way for an answer to this
                self._asked = joined(self._asked, frozenset(r.name for r in self.outstanding.resources))
            self._set_wildcard(True)
        lost = stopped & self.names
        if lost or not new.names <= self.names:
            self.names = renamed(self.names, new.names, lost)
            self._check(len(self.names), new.names)
        self._asked = joined(self._asked, new.names)
        if self.wildcard:
            self._asked = joined(self._asked, lost)
        else:
            self._lose(lost)

    def believe(self, has: Mapping[str, str], clusters: State | None) -> None:
        """Delta, first request: the client has these versions already, so only what differs from them is sent, and
        what has another mark than it would be sent with now (see ``send``): the client waits for it. Call ``refresh``
        before.
        """
        if not self.wildcard and not self.names.issuperset(has):
            has = {name: version for name, version in has.items() if name in self.names}
        if has:
            self._answer_due = False
        self.held = believed(has, self._aim, clusters, self.type_url)
        self._dirty = differing(self.held, self._aim)
        self._asked = without(self._asked, without(self.held.names, self._dirty))

    def is_wanted(self, name: str) -> bool:
        return self.wildcard or name in self.names

    def _set_wildcard(self, wildcard: bool) -> None:
        if wildcard == self.wildcard:
            return
        self.wildcard = wildcard
        self._source, self._aim, self._aimed = None, EMPTY, NO_NAMES
        self._answer_due = wildcard
        if not wildcard:
            self.held = self.held.only(self.names)
            self._dirty &= self.names
            self._asked &= self.names
            self._doubt = {name: refusal for name, refusal in self._doubt.items() if name in self.names}

    def _lose(self, names: frozenset[str]) -> None:
        """The client has let go of names that it asked for."""
        if not names:
            return
        self._asked = without(self._asked, names)
        if self.wildcard:
            return
        self.held = self.held.changed((), names)
        self._dirty = without(self._dirty, names)
        for name in names:
            self._doubt.pop(name, None)

    # -- what the world has

    def refresh(self, source: ResourceSet | None) -> None:
        """Note what differs between the client and the set; costs what was touched since the last time."""
        revision = 0 if source is None else source.refresh()
        if source is self._source and revision == self._revision and self.names is self._aimed:
            return
        news = source.touched_since(self._revision) if source is not None and source is self._source else None
        asked_anew = moved(self.names, self._aimed) if self.names is not self._aimed else NO_NAMES
        self._source, self._revision, self._aimed = source, revision, self.names
        if source is None or news is None or len(asked_anew) > max(FEW, len(self.names) // MANY):
            self._aim = EMPTY if source is None else goal(source, wildcard=self.wildcard, names=self.names)
            self._dirty = differing(self.held, self._aim)
            return
        touched = [name for name in {*news, *asked_anew} if self.is_wanted(name) or name in self._aim.entries]
        if self.wildcard:
            self._aim = goal(source, wildcard=True, names=self.names)
        else:
            new = {name: source.get(name) if name in self.names else None for name in touched}
            drops = [name for name, resource in new.items() if resource is None and name in self._aim.entries]
            self._aim = self._aim.changed([resource for resource in new.values() if resource is not None], drops)
        dirty = frozenset(filter(self._differs, touched))
        self._dirty = joined(without(self._dirty, frozenset(touched) - dirty), without(dirty, self._dirty))

    def lacks(self, name: str) -> bool:
        """Whether the set has a name that the client should be sent and was not yet, as far as it asked for it."""
        exists = self._source is not None and self._source.get(name) is not None
        sent = self.is_wanted(name) and name in self.held.entries and name not in self._asked
        return exists and not sent

    def adds(self, plan: Plan) -> bool:
        """Whether a plan gives the client anything that it does not have."""
        return not plan.put_names <= self.held.names

    def is_new(self, name: str) -> bool:
        """Whether a name that is about to be sent is asked for, or the client may not have it."""
        return name in self._asked or name not in self.held.entries or name in self._doubt

    def absent(self, names: frozenset[str]) -> frozenset[str]:
        """Those of some names that the set does not have. Call ``refresh`` before."""
        return without(names, self._aim.names)

    def is_current(self, name: str) -> bool:
        """Whether the client was sent a name that the set still has."""
        return name in self.held.entries and self._current(name) is not None

    def is_retiring(self, name: str) -> bool:
        """Whether the client still has a name that the set no longer has."""
        return name in self.held.entries and self._current(name) is None

    def _current(self, name: str) -> Resource | None:
        found = self._aim.entries.get(name)
        if found is None and name in self.names and name not in self._aimed and self._source is not None:
            found = self._source.get(name)
        return found

    def _differs(self, name: str) -> bool:
        current, held = self._current(name), self.held.entries.get(name)
        if current is None or held is None:
            return current is not held
        return current.version != held.version

    # -- what to send

    def ask_again(self, names: Iterable[str]) -> None:
        """The client waits for these, whether they changed or not, as far as it ever had them."""
        again = self.held.names.intersection(names)
        self._asked = joined(self._asked, again if self.wildcard else again & self.names)

    def take_back(self, version: str) -> bool:
        """A wildcard client comes back with this version: take it at its word, if it is known what that was.

        Returns whether it is; only what differs from it is then new to the client. Call ``refresh`` before.
        """
        state = recall(version)
        if state is None:
            return False
        self.held = state
        self.acked_version = self.version = version
        self._answer_due = False
        self._dirty = differing(state, self._aim)
        return True

    def presume(self, resources: Iterable[Resource]) -> None:
        """A wildcard client comes back with a version that is not known: it has at least what stands for these."""
        self.held = self.held.changed(resources, ())
        self._dirty = differing(self.held, self._aim)

    def plan(
        self, keep: Callable[[str], bool] | None = None, stand_in: Callable[[str], Resource | None] | None = None
    ) -> Plan | None:
        """What to send now, None for nothing. ``keep`` says which removals must wait; ``stand_in`` gives what to send
        for a name that is asked for and not there, where the client cannot be told so."""
        if not (self._dirty or self._asked or self._doubt or self._answer_due):
            return None
        names = joined(self._dirty, self._asked)
        if not self._doubt:
            offered = offer(names, self._aim)
            if not offered.missing:
                return self._choose(offered.plan, {})
        elif not self.whole_state:
            names |= self._doubt.keys()
        clean = Draft()
        tainted: dict[int, Draft] = {}
        for name in sorted(names):
            current = self._current(name)
            if current is None and stand_in is not None and name in self._asked and not self._removes:
                current = stand_in(name)
            if current is None and not self._may_drop(name, keep):
                continue
            refusal = self._doubt.get(name) if self._doubt else None
            if refusal is not None and self._is_as_refused(name, current, refusal):
                tainted.setdefault(refusal.group, Draft()).add(name, current)
            else:
                clean.add(name, current)
        return self._choose(clean.plan(), tainted)

    def _choose(self, clean: Plan, tainted: Mapping[int, Draft]) -> Plan | None:
        """Fresh content first. What was refused is tried again only without what has changed meanwhile, never as is."""
        if self.whole_state:
            return clean if clean.puts or clean.drops or self._asked or self._answer_due else None
        if clean.puts or (clean.drops and self._removes) or self._answer_due:
            return clean
        for group, draft in tainted.items():
            if content_digest(draft.puts, draft.drops) != group:
                return draft.plan()
        return None

    def _may_drop(self, name: str, keep: Callable[[str], bool] | None) -> bool:
        """Whether to tell the client now that a name is gone."""
        if name in self._asked and self._removes:
            return True
        known = name in self.held.entries or name in self._doubt
        return known and not (keep is not None and keep(name))

    def _is_as_refused(self, name: str, current: Resource | None, refusal: Refusal) -> bool:
        if self.whole_state or name in self._asked:
            return False
        return refusal.version == ("" if current is None else current.version)

    def send(self, plan: Plan, clusters: State | None) -> Response:
        """The response of a plan; from now on the client counts as having it.

        With ``clusters``, those that the client holds, endpoints are marked with the versions of theirs.
        """
        removed = plan.drops if self._removes else ()
        self.held = after(self.held, plan)
        if self.whole_state:
            self._doubt.clear()
            self._asked = NO_NAMES
        elif self._doubt:
            for name in plan.touched:
                self._doubt.pop(name, None)
        self._dirty = without(self._dirty, plan.names)
        self._asked = without(self._asked, plan.names)
        self._answer_due = False
        if self.whole_state:
            resources, made = self.held.listing(), Content(self.held.digest)
        else:
            resources, made = plan.puts, content(plan, removed, clusters)
        nonce = f"{made.digest:032x}"
        self.nonce = nonce if nonce != self.nonce else nonce + "+"
        self.version = self.held.version
        self.phase = Phase.UNACKED
        what = (self.variant, self.type_url, self.version, self.nonce)
        self.outstanding = Response(*what, resources, removed, made.marks, plan.touched)
        return self.outstanding

    # -- what the client answers

    def ack(self) -> bool:
        """The last response was accepted; False when that was known."""
        if self.outstanding is None:
            return False
        self.acked_nonce, self.acked_version = self.nonce, self.version
        self.outstanding = None
        self.phase = Phase.ACKED
        return True

    def nack(self) -> Response | None:
        """The last response was refused: what the client has of it is unknown. Returns it, if it was still un-ACKed."""
        refused, self.outstanding = self.outstanding, None
        if refused is None:
            return None
        self.phase = Phase.NACKED
        group = content_digest(refused.resources, refused.removed)
        versions = {resource.name: resource.version for resource in refused.resources}
        for name in refused.touched:
            if self.is_wanted(name) and (name in versions or name in refused.removed or self.whole_state):
                self._doubt[name] = Refusal(group, versions.get(name, ""))
        return refused

    @property
    def in_doubt(self) -> Collection[str]:
        """Names that the client may or may not have as they were sent."""
        return self._doubt.keys()

    @property
    def is_missing_any(self) -> bool:
        """Whether the client asks for anything that is not there, and was told nothing about it."""
        return any(self._current(name) is None for name in self._asked)

    @property
    def is_settled(self) -> bool:
        """Whether the client has accepted all that it was sent."""
        return self.outstanding is None and self.phase is not Phase.NACKED and not self._doubt
