"""Shares: whoever has no more than half of the limit loses nothing but what is stalled; nobody else holds more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mesh_pilot.net.rpc.shares import Shares

LIMIT = 7
OWNERS = "abcd"


class Server(RuleBasedStateMachine):
    """Entries that come as a server takes them, next to a list that says the same plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: Shares[int] = Shares(LIMIT)
        self.entries: list[tuple[int, str]] = []
        """Entries with their owners, oldest first."""
        self.stalled: list[int] = []
        self.now = 0

    def of(self, owner: str) -> list[int]:
        return [entry for entry, its in self.entries if its == owner]

    def drop(self, entry: int) -> None:
        self.shares.remove(entry)
        self.entries = [(each, owner) for each, owner in self.entries if each != entry]
        self.stalled = [each for each in self.stalled if each != entry]

    @rule(owner=st.sampled_from(OWNERS))
    def come(self, owner: str) -> None:
        self.now += 1
        if self.shares.is_full:
            victim = self.shares.giving_way(owner)
            would_be_most = 2 * (len(self.of(owner)) + 1) > LIMIT
            own_stalled = [entry for entry in self.stalled if entry in self.of(owner)]
            if would_be_most and own_stalled:
                assert victim in own_stalled
            elif self.stalled and not would_be_most:
                assert victim == self.stalled[0]
            elif victim is None:
                hogs = [each for each in OWNERS if 2 * len(self.of(each)) > LIMIT]
                assert not hogs or would_be_most
                return
            else:
                (theirs,) = (its for each, its in self.entries if each == victim)
                assert theirs != owner and victim == self.of(theirs)[-1]
                assert 2 * len(self.of(theirs)) > LIMIT, "who has no more than half loses nothing"
                assert not would_be_most, "nobody gets more than half by another's loss"
            self.drop(victim)
        self.shares.add(self.now, owner)
        self.entries.append((self.now, owner))

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.sampled_from(self.entries))[0])

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def is_proven_to_be_of(self, data: st.DataObject, owner: str) -> None:
        entry, _ = data.draw(st.sampled_from(self.entries))
        self.shares.add(entry, owner)
        self.entries = [(each, its) for each, its in self.entries if each != entry] + [(entry, owner)]

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), is_stalled=st.booleans())
    def stall(self, data: st.DataObject, is_stalled: bool) -> None:
        entry, _ = data.draw(st.sampled_from(self.entries))
        if is_stalled:
            self.now += 1
            self.shares.stall(entry, self.now)
            self.stalled += [entry] if entry not in self.stalled else []
        else:
            self.shares.resume(entry)
            self.stalled = [each for each in self.stalled if each != entry]

    @invariant()
    def they_say_the_same(self) -> None:
        assert len(self.shares) == len(self.entries) <= LIMIT
        assert self.shares.is_full == (len(self.entries) == LIMIT)
        assert {each: self.shares.held_by(each) for each in OWNERS} == {each: len(self.of(each)) for each in OWNERS}
        longest = self.shares.longest_stalled()
        assert (longest[0] if longest else None) == (self.stalled[0] if self.stalled else None)


TestServer = Server.TestCase


@given(st.lists(st.sampled_from(OWNERS), max_size=100))
def test_below_the_limit_nobody_is_refused_whoever_has_how_many(owners: list[str]) -> None:
    shares: Shares[int] = Shares(len(owners) + 1)
    for number, owner in enumerate(owners):
        assert not shares.is_full
        shares.add(number, owner)


@given(st.lists(st.sampled_from(OWNERS), min_size=200, max_size=200), st.sampled_from(OWNERS))
def test_two_owners_never_take_the_same_place_in_turns(owners: list[str], hog: str) -> None:
    """Everybody returns when ended: after a while nothing moves."""
    shares: Shares[int] = Shares(LIMIT)
    for number in range(LIMIT):
        shares.add(number, hog)
    moves = 0
    for number, owner in enumerate(owners, LIMIT):
        victim = shares.giving_way(owner)
        if victim is not None:
            moves += 1
            shares.remove(victim)
            shares.add(number, owner)
    assert moves <= LIMIT
    assert repr(shares).startswith(f"<Shares {LIMIT} of {LIMIT}, ")


def test_who_has_more_than_half_takes_places_from_itself_only() -> None:
    shares: Shares[str] = Shares(3)
    for entry, owner in (("good", "a"), ("one", "b"), ("two", "b")):
        shares.add(entry, owner)
    shares.stall("good", 1)
    assert shares.giving_way("b") is None
    assert shares.giving_way("c") == "good"
    shares.stall("two", 2)
    assert shares.giving_way("b") == "two"
    shares.add("two", "a")
    shares.resume("good")
    assert shares.giving_way("a") == "two", "what is stalled stays so with another owner"


def test_what_is_gone_is_stalled_no_more() -> None:
    shares: Shares[str] = Shares(1)
    shares.stall("unknown", 0)
    assert shares.longest_stalled() is None
    shares.add("one", "a")
    shares.stall("one", 1)
    shares.stall("one", 2)
    assert shares.longest_stalled() == ("one", 1)
    assert "one" in shares and shares.giving_way("b") == "one"
    shares.remove("one")
    shares.remove("one")
    assert shares.longest_stalled() is None and "one" not in shares and not shares.is_full
