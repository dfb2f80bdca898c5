"""One type on one stream: what the client requests, what it holds, and what to send it next.

Theory of operation
===================

A subscription keeps two snapshots (see ``engine.snapshots``): ``client_state``, the resources that the client holds
once it has applied everything it was sent, and ``_desired``, the resources that it should hold. To serve a client is to
make the first equal the second. There is no queue: whatever changes while a response waits for its ACK is merged,
because the next response is again the difference between the two.

What decides what is sent:

* *Changed* names: ``diff(client_state, _desired)``.
* *Requested* names: the client waits for them, changed or not. It just subscribed to them, or Envoy needs them again
  (the endpoints of a cluster that was sent again). A requested name that does not exist is answered in Delta
  ("removed"), unless it will soon (``_awaited``); State of the World has no way to say so.
* *Nacked* names: they were in a response that the client refused, so it may hold them or not. Envoy applies parts of a
  refused Delta or EDS response. A nacked name is sent again once it has another version. What was refused is never
  repeated as it was, or client and server would be busy forever.
* An *answer due*: a wildcard subscription that matches nothing must be told so.

One response of a type is un-ACKed at a time. The client counts as holding a response as soon as it is sent; a NACK
takes that back by making its names doubtful.

The variants differ in two ways only.

* How names are requested. State of the World requests list all names that are wanted (``request``); a stale request,
  one that answers an earlier response, is dropped, but the names that it lacks must be sent again when they come back
  (``note_stale_request``). Delta requests subscribe and unsubscribe (``change``).
* What a response holds. In State of the World, CDS and LDS responses hold everything, and what is not in them is gone
  (``is_full_state``); other types hold changes and cannot remove anything. Delta responses hold changes and removals.

*Reconnect.* Nothing is remembered per client. A Delta client presents the versions of what it has
(``seed_from_versions``). A State of the World client presents the version of its last response, which is the digest of
all that it holds: if any snapshot with that digest is still around, that is its state (``restore``). Otherwise the
stream has to guess (decision 011: ``assume``).

*Sharing.* Whatever grows with the mesh is immutable, and the same object for all streams in the same state. A change
costs each stream the names that it touches.

The order between types is not decided here but in ``ordering``. The rules are those of Envoy's "xDS REST and gRPC
protocol" document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial

import attrs

from mesh_pilot.engine.patched import Names, flat
from mesh_pilot.engine.snapshots import EMPTY, NO_NAMES, Snapshot, SnapshotStore, absent, union, without
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds, check
from mesh_pilot.model.resource import CLUSTER, LISTENER, RESOURCE_TYPES, Resource
from mesh_pilot.xds.ads.last_response import Doubts, LastResponse, NackedVersion
from mesh_pilot.xds.ads.messages import Phase, PresentedVersions, Response, SharedNames, SubscriptionStatistics, Variant
from mesh_pilot.xds.ads.pending_response import (
    PendingResponse,
    ResponseBuilder,
    content_digest,
    offer,
    presented_versions,
    response_of,
    step,
)
from mesh_pilot.xds.ads.resources import TypeResources

WILDCARD = "*"


class Subscription:
    """One type of one stream.

    Mutable state: what the client subscribes to (``wildcard``, ``names``), the two snapshots, what to send besides the
    names that differ (``_requested``, ``_answer_due``), the last response (``last``), and what the client may have of
    those that it refused (``_doubts``).
    """

    def __init__(self, type_url: str, variant: Variant, store: SnapshotStore, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.type_url = type_url
        self.variant = variant
        self._store = store
        self._bounds = bounds
        self.is_full_state = variant is Variant.SOTW and type_url in (CLUSTER, LISTENER)
        """Each response holds everything, so that what is not in it is gone."""
        self._can_remove = variant is Variant.DELTA
        """Responses name what is gone."""
        self.wildcard = False
        self.names: Names = NO_NAMES
        self.client_state = EMPTY
        self.is_stale = True
        """True if what the client should hold may have changed since ``refresh``."""
        self._desired = EMPTY
        self._awaited = NO_NAMES
        """Names that do not exist yet: the client waits for them."""
        self._requested = NO_NAMES
        self._answer_due = False
        self._asked: tuple[str, ...] | None = None
        """State of the World: the names of the last request that was not stale, if requests share them."""
        self._has_named = False
        """State of the World: the client has ever subscribed by name, so that no names now mean nothing."""
        self._unnamed_by_stale = NO_NAMES
        """State of the World: names that a stale request lacked."""
        self.last = LastResponse()
        self._doubts = Doubts()

    def __repr__(self) -> str:
        subscribed = "*" if self.wildcard else f"{len(self.names)} names"
        version = f" {self.last.version[:8]}" if self.last.version else ""
        short = RESOURCE_TYPES[self.type_url].short if self.type_url else "no type"
        return f"<{short} {subscribed} {self.last.phase.value}{version} {len(self._changed())} changed>"

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            type_url=self.type_url,
            phase=Phase.ACKED if self._came_with_everything else self.last.phase,
            wildcard=self.wildcard,
            names=len(self.names),
            resources=len(self.client_state),
            version=self.last.version,
            nonce=self.last.nonce,
            acked_version=self.last.acked_version,
            acked_nonce=self.last.acked_nonce,
            nacked=len(self._doubts.nacked),
        )

    @property
    def _came_with_everything(self) -> bool:
        """True if nothing had to be sent, because the client has it all from an earlier stream."""
        has_any = bool(len(self.client_state))
        return self.last.phase is Phase.IDLE and has_any and self.client_state.digest == self._desired.digest

    # -- what the client subscribes to

    def request(self, names: tuple[str, ...]) -> None:
        """State of the World: these names are all that the client subscribes to now.

        No names at all mean everything as long as there never were any; later they mean nothing. Raises BoundError.
        """
        if names is self._asked and not self._unnamed_by_stale:
            return  # an ACK: clients that request the same share the tuple
        # Only names that requests share come again as the same object; others would be kept for nothing.
        self._asked = names if not names or isinstance(names, SharedNames) else None
        if names:
            self._has_named = True
        now, has_wildcard = self._store.shared(_parsed, self._store, names)
        wildcard = has_wildcard or not self._has_named
        is_same = now is self.names or now == self.names  # to compare a set with itself is to walk through it
        if wildcard == self.wildcard and is_same and not self._unnamed_by_stale:
            return
        self.is_stale = True
        new, lost = without(flat(now), flat(self.names)), without(flat(self.names), flat(now))
        self._check(len(now), new)
        self.names = now
        self._requested = union(self._requested, new)
        self._set_wildcard(wildcard)
        self._unsubscribe(lost)
        self._requested = union(self._requested, frozenset(filter(self.is_subscribed, self._unnamed_by_stale)))
        self._unnamed_by_stale = NO_NAMES

    def note_stale_request(self, names: tuple[str, ...]) -> None:
        """State of the World: a stale request did not name everything, so the client has dropped some.

        If it names them in its next request, it has to be sent them again.
        """
        self._has_named = self._has_named or bool(names)
        now, has_wildcard = self._store.shared(_parsed, self._store, names)
        self._unnamed_by_stale = union(self._unnamed_by_stale, without(flat(self.names), flat(now)))
        if self._has_named and not has_wildcard and self.wildcard:
            self._unnamed_by_stale = union(self._unnamed_by_stale, self._desired.names)

    def change(self, subscribe: Collection[str], unsubscribe: Collection[str], *, first: bool) -> None:
        """Delta: subscribe to names and unsubscribe from others; one in both lists is requested again.

        The ``first`` request of a type means everything when it has no names at all. Raises BoundError.
        """
        if not subscribe and not unsubscribe:
            if first:
                self._set_wildcard(True)
            return
        self.is_stale = True
        parsed, has_wildcard = self._store.shared(_parsed, self._store, tuple(subscribe))
        new = flat(parsed)
        stopped = frozenset(unsubscribe).difference(subscribe)
        if WILDCARD in stopped:
            self._set_wildcard(False)
        if has_wildcard:
            if self.wildcard:
                self._requested = union(self._requested, self._desired.names | self.client_state.names)
            elif self.last.outstanding is not None:  # the client may take what is under way for an answer to this
                self._requested = union(self._requested, frozenset(r.name for r in self.last.outstanding.resources))
            self._set_wildcard(True)
        lost = frozenset([name for name in stopped if name in self.names])
        if lost or any(name not in self.names for name in new):
            self.names = self._store.shared(SnapshotStore.renamed, self._store, self.names, new, lost)
            self._check(len(self.names), new)
        self._requested = union(self._requested, new)
        if self.wildcard:
            # The wildcard still covers these names, but the client may have dropped them.
            self._requested = union(self._requested, lost)
        else:
            self._unsubscribe(lost)

    def _check(self, count: int, names: Collection[str]) -> None:
        """Raises BoundError for too many names together, or for one that is too long."""
        short = RESOURCE_TYPES[self.type_url].short
        check(self._bounds, "max_names", f"names in the subscription to {short}", count)
        if names:
            check(self._bounds, "max_name_length", "characters in a resource name", max(map(len, names)))

    def is_subscribed(self, name: str) -> bool:
        return self.wildcard or name in self.names

    def _set_wildcard(self, wildcard: bool) -> None:
        if wildcard == self.wildcard:
            return
        self.wildcard, self.is_stale = wildcard, True
        self._desired = EMPTY
        self._answer_due = wildcard
        if not wildcard:
            drops = [name for name in self.client_state.entries if name not in self.names]
            self.client_state = self._store.edit(self.client_state, drops=drops)
            self._requested &= self.names
            self._doubts.retain(self.names)

    def _unsubscribe(self, names: frozenset[str]) -> None:
        """The client has dropped names that it had subscribed to."""
        if not names:
            return
        self._requested = without(self._requested, names)
        if self.wildcard:
            return
        self.client_state = self._store.edit(self.client_state, drops=names)
        for name in names:
            self._doubts.nacked.pop(name, None)

    # -- what the client has when it comes back

    def seed_from_versions(self, versions: PresentedVersions, clusters: Snapshot | None) -> None:
        """Delta, first request: the client has these versions, so only what differs from them is sent.

        Endpoints with another suffix than they would be sent with now (see ``send``) are sent too: the client waits
        for them. Call ``refresh`` before.
        """
        names = None if self.wildcard else self.names
        state, has_any = self._store.shared(
            _presented, self._store, self._desired, clusters, versions, names, self.type_url
        )
        self.client_state = state
        if has_any:
            self._answer_due = False
        self._requested = self._store.shared(_unsettled, self._requested, state.names, self._changed())

    def restore(self, version: str) -> bool:
        """A wildcard client comes back with this version: if its snapshot is known, only what differs is sent.

        Returns False if it is not known.
        """
        snapshot = self._store.lookup(version)
        if snapshot is None:
            return False
        self.client_state = snapshot
        self.last.acked_version = self.last.version = version
        self._answer_due = False
        return True

    def assume(self, resources: Iterable[Resource]) -> None:
        """A wildcard client comes back with a version that is not known: it has at least these names."""
        self.client_state = self._store.edit(self.client_state, resources)

    # -- what there is

    def refresh(self, source: TypeResources | None) -> None:
        """Bring what the client should hold up to date; costs what changed since the last time."""
        desired = source.snapshot() if source is not None and self.wildcard else EMPTY
        if source is not None and self.names:
            named = source.select(self.names)
            desired = self._store.overlay(desired, named) if self.wildcard else named
        self._desired = desired
        self._awaited = source.awaited() if source is not None else NO_NAMES
        self.is_stale = False

    @property
    def is_even(self) -> bool:
        """True if the client holds what it should and waits for nothing, for certain: costs little."""
        is_same = self.client_state is self._desired and not self.is_stale
        return is_same and not (self._requested or self._doubts.nacked or self._answer_due)

    @staticmethod
    def have_news(subscriptions: Iterable[Subscription]) -> bool:
        """True if there may be something to send of any that waits for no ACK. Asked twice for each push: it looks by
        itself what `is_even` would tell."""
        for each in subscriptions:
            if each.last.outstanding is None and (
                each.client_state is not each._desired
                or each.is_stale
                or each._requested
                or each._doubts.nacked
                or each._answer_due
            ):
                return True
        return False

    def _changed(self) -> frozenset[str]:
        """The names by which the client's state differs from the desired one."""
        return self._store.diff(self.client_state, self._desired)

    def lacks(self, name: str) -> bool:
        """True for a name that the client was not sent since it requested it last."""
        return not (self.is_subscribed(name) and name in self.client_state.entries and name not in self._requested)

    def adds(self, pending: PendingResponse) -> bool:
        """True if a response gives the client a name that it does not have."""
        return bool(absent(pending.put_names, self.client_state.entries))

    def is_new(self, name: str) -> bool:
        """True for a name, about to be sent, that is requested or that the client may not have."""
        return name in self._requested or name not in self.client_state.entries or name in self._doubts.nacked

    def absent(self, names: frozenset[str]) -> frozenset[str]:
        """The names that do not exist. Call ``refresh`` before."""
        return absent(names, self._desired.entries)

    def is_current(self, name: str) -> bool:
        """True for a name that the client was sent and that still exists."""
        return name in self.client_state.entries and name in self._desired.entries

    def is_retiring(self, name: str) -> bool:
        """True for a name that the client still has and that no longer exists."""
        return name in self.client_state.entries and name not in self._desired.entries

    def has_never_had(self, name: str) -> bool:
        """True for a name that was only in responses that the client refused, where these hold everything."""
        return name in self._doubts.never_had

    @property
    def is_missing_any(self) -> bool:
        """True if the client requests a name that does not exist, and was told nothing about it."""
        return any(name not in self._desired.entries for name in self._requested)

    def missing(self) -> frozenset[str]:
        """The names that the client subscribes to, does not have, and that do not exist. Call ``refresh`` before."""
        if not self.names or (not self.wildcard and len(self.names) == len(self.client_state)):
            return NO_NAMES  # a client without the wildcard holds nothing but these names
        return self._store.shared(_missing, self.names, self.client_state, self._desired)

    # -- what to send

    def request_again(self, names: Iterable[str]) -> None:
        """The client waits for those of these names that it ever had, changed or not."""
        held = self.client_state.entries
        again = frozenset([name for name in names if name in held and self.is_subscribed(name)])
        self._requested = union(self._requested, again)

    def pending(
        self,
        must_stay: Callable[[str], bool] | None = None,
        stand_in: Callable[[str], Resource | None] | None = None,
    ) -> PendingResponse | None:
        """The next response, None for nothing. Call ``refresh`` before.

        ``must_stay`` tells which removals have to wait. ``stand_in`` gives what to send for a name that is requested
        and does not exist, where the client cannot be told so.
        """
        if not (self._requested or self._doubts.nacked or self._answer_due):
            # What nearly every push is: nothing is gone, nothing requested or in doubt.
            found, gone = self._store.shared(step, self._store, self.client_state, self._desired)
            if found is None or not gone:
                return found
        names = union(self._changed(), self._requested)
        if not self._doubts.nacked:
            # The same for all streams in this state, too.
            response, missing = self._store.shared(offer, names, self._desired)
            if not missing:
                return self._choose(response, {})
        elif not self.is_full_state:
            names |= self._doubts.nacked.keys()
        fresh = ResponseBuilder()
        refused: dict[int, ResponseBuilder] = {}
        for name in sorted(names):
            resource = self._desired.entries.get(name)
            is_stand_in = False
            if resource is None and stand_in is not None and name in self._requested and not self._can_remove:
                resource = stand_in(name)
                is_stand_in = resource is not None
            if resource is None and not self._may_drop(name, must_stay):
                continue
            nacked = self._doubts.nacked.get(name)
            if nacked is not None and self._is_as_refused(name, resource, nacked):
                refused.setdefault(nacked.group, ResponseBuilder()).add(name, resource)
            else:
                fresh.add(name, resource, is_stand_in=is_stand_in)
        return self._choose(fresh.build(), refused)

    def _choose(self, fresh: PendingResponse, refused: Mapping[int, ResponseBuilder]) -> PendingResponse | None:
        """Fresh content goes first. Refused content is tried again only if part of it has changed since it was read."""
        if self.is_full_state:
            return fresh if fresh.puts or fresh.drops or self._requested or self._answer_due else None
        if fresh.puts or (fresh.drops and self._can_remove) or self._answer_due:
            return fresh
        for group, builder in refused.items():
            if content_digest(builder.puts, builder.drops) != group:
                return builder.build()
        return None

    def _may_drop(self, name: str, must_stay: Callable[[str], bool] | None) -> bool:
        """True if the client may be told now that a name is gone."""
        if name in self._awaited:
            return False
        if name in self._requested and self._can_remove:
            return True
        is_known = name in self.client_state.entries or name in self._doubts.nacked
        return is_known and not (must_stay is not None and must_stay(name))

    def _is_as_refused(self, name: str, resource: Resource | None, nacked: NackedVersion) -> bool:
        if self.is_full_state or name in self._requested:
            return False
        return nacked.version == ("" if resource is None else resource.version)

    def send(self, pending: PendingResponse, clusters: Snapshot | None) -> Response:
        """The response; from now on the client counts as having it.

        With ``clusters``, those that the client holds, the versions of endpoints are suffixed with those of theirs.
        """
        if self.is_full_state:
            self._doubts.before = self.client_state
        self.client_state = state = self._state_with(pending)
        if self.is_full_state:
            self._doubts.nacked.clear()
            self._requested = NO_NAMES
            made = _whole_response
        else:
            for name in pending.touched if self._doubts.nacked else ():
                self._doubts.nacked.pop(name, None)
            if self._requested:
                self._requested = without(self._requested, pending.names)
            made = _partial_response
        self._answer_due = False
        response = self._store.shared(made, self.variant, self.type_url, pending, state, clusters)
        last = self.last
        if response.nonce == last.nonce:
            response = attrs.evolve(response, nonce=response.nonce + "+")
        last.nonce, last.version, last.phase = response.nonce, response.version, Phase.UNACKED
        last.outstanding = response
        return response

    def _state_with(self, pending: PendingResponse) -> Snapshot:
        """The client's state once it has a response: the desired one, but for what is still held back.

        Written down from the desired state, so that the next comparison finds that among its ancestors.
        """
        if pending.completes is not None and pending.completes is self._desired:
            return self._desired
        before = self.client_state.entries
        held_back = without(self._changed(), pending.names)
        if not held_back and not pending.stand_ins:
            return self._desired
        puts = [before[name] for name in held_back if name in before]
        drops = [name for name in held_back if name not in before]
        return self._store.edit(self._desired, [*puts, *pending.stand_ins], drops)

    # -- what the client answers

    def ack(self) -> bool:
        """The last response was accepted; False if that was known."""
        if self.last.outstanding is None:
            return False
        self.last.accept()
        self._doubts.before, self._doubts.never_had = EMPTY, NO_NAMES
        return True

    def nack(self) -> Response | None:
        """The last response was refused: what the client has of it is unknown. Returns it if it was still un-ACKed."""
        refused = self.last.refuse()
        if refused is None:
            return None
        doubtful = [name for name in refused.touched if self.is_subscribed(name)]
        if self.is_full_state:
            self._doubts.never_had |= without(frozenset(refused.touched), self._doubts.before.names)
        else:
            told = {*(resource.name for resource in refused.resources), *refused.removed}
            doubtful = [name for name in doubtful if name in told]
        self._doubts.add(refused, doubtful)
        return refused

    @property
    def nacked_names(self) -> Collection[str]:
        """Names that the client may or may not have as they were sent."""
        return self._doubts.nacked.keys()

    def is_refused(self, but: Container[Resource] = ()) -> bool:
        """True while anything ``but`` these is not sent because the client has refused it as it is.

        Call ``refresh`` before. Where responses hold everything, any refusal counts.
        """
        if self.is_full_state:
            return self.last.phase is Phase.NACKED
        desired = self._desired.entries
        return any(
            self._is_as_refused(name, desired.get(name), nacked) and desired.get(name) not in but
            for name, nacked in self._doubts.nacked.items()
        )

    @property
    def is_settled(self) -> bool:
        """True if the client has accepted all that it was sent."""
        return self.last.outstanding is None and self.last.phase is not Phase.NACKED and not self._doubts.nacked


_whole_response = partial(response_of, is_full_state=True)
_partial_response = partial(response_of, is_full_state=False)


def _parsed(store: SnapshotStore, names: tuple[str, ...]) -> tuple[Names, bool]:
    """The names of a request without the wildcard, and whether it has that."""
    found = frozenset(names)
    return store.names(found - {WILDCARD}), WILDCARD in found


def _presented(
    store: SnapshotStore,
    desired: Snapshot,
    clusters: Snapshot | None,
    versions: PresentedVersions,
    names: Names | None,
    type_url: str,
) -> tuple[Snapshot, bool]:
    """The state of a client that presents these versions, of these names only if there are any, and if it has any."""
    had: Mapping[str, str] = versions
    if names is not None and not flat(names).issuperset(versions):
        had = {name: version for name, version in versions.items() if name in names}
    expected = store.shared(presented_versions, desired, clusters)
    if had == expected:
        return desired, bool(had)
    other = [
        Resource(name, type_url, b"", f"{version} at the client")
        for name, version in had.items()
        if expected.get(name) != version
    ]
    return store.edit(desired, other, desired.names - had.keys()), bool(had)


def _unsettled(requested: frozenset[str], held: frozenset[str], changed: frozenset[str]) -> frozenset[str]:
    """The names that are requested and that the client does not hold as they should be."""
    return without(requested, without(held, changed))


def _missing(names: Names, held: Snapshot, there: Snapshot) -> frozenset[str]:
    return frozenset([name for name in names if name not in held.entries and name not in there.entries])
