"""Filter chains as values: matches, what two of them can't share, inspectors by port."""

from __future__ import annotations

from envoy.config.listener.v3.listener_pb2 import Listener
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.envoy.core.protobuf import address
from mesh_pilot.envoy.listeners.filter_chains import (
    MATCH_ALL,
    TLS_TRANSPORT,
    ChainMatch,
    EncodedChain,
    assemble,
    filter_chain,
    merge_chains,
    sni_match,
)
from mesh_pilot.envoy.listeners.inspectors import inbound_filters
from mesh_pilot.model.config import ConfigKey


def named(host: str, match: ChainMatch) -> EncodedChain:
    return EncodedChain(match, host.encode(), host)


def test_a_wildcard_name_and_the_whole_world_say_nothing() -> None:
    assert sni_match(("a.example", "*"), ("0.0.0.0/0", "")) == MATCH_ALL
    assert sni_match(("b", "a", "b"), ("10.0.0.0/8",)) == ChainMatch(server_names=("b", "a"), cidrs=("10.0.0.0/8",))


def test_a_later_chain_is_narrowed_to_what_is_left() -> None:
    one = named("one", sni_match(("a", "b"), ("10.0.0.0/8",)))
    two = named("two", sni_match(("b", "c"), ("10.0.0.0/8",)))
    kept, conflicts = merge_chains("l", (one, two))
    assert kept == (one, named("two", sni_match(("c",), ("10.0.0.0/8",))))
    assert [(c.kept, c.dropped, c.reason) for c in conflicts] == [
        ("one", "two", "both claim server name b and destination 10.0.0.0/8")
    ]


def test_a_chain_that_does_the_same_is_dropped_without_a_conflict() -> None:
    one, two = EncodedChain(MATCH_ALL, b"same", "one"), EncodedChain(MATCH_ALL, b"same", "two")
    assert merge_chains("l", (one, two)) == ((one,), ())


NAMES = st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(tuple)
CIDRS = st.lists(st.sampled_from(["10.0.0.0/8", "11.0.0.0/8"]), unique=True, max_size=2).map(tuple)


@given(st.lists(st.builds(ChainMatch, server_names=NAMES, cidrs=CIDRS), max_size=6))
def test_merged_chains_never_match_the_same_and_lose_nothing(matches: list[ChainMatch]) -> None:
    def singles(match: ChainMatch) -> set[tuple[str, str]]:
        return {(n, c) for n in match.server_names or ("",) for c in match.cidrs or ("",)}

    kept, _ = merge_chains("l", (named(str(i), m) for i, m in enumerate(matches)))
    seen: list[tuple[str, str]] = [s for c in kept for s in singles(c.match)]
    assert len(seen) == len(set(seen))
    assert set(seen) == {s for m in matches for s in singles(m)}


def test_a_listener_names_the_configs_of_its_chains_once() -> None:
    key = ConfigKey("VirtualService", "shop", "a")
    chains = [filter_chain(ChainMatch(port=p), (), configs=(key,)) for p in (1, 2)]
    resource = assemble(Listener(name="l"), chains, default=filter_chain(MATCH_ALL, (), name="rest", configs=(key,)))
    assert resource.configs == (key,)
    decoded = Listener.FromString(resource.body)
    assert [c.filter_chain_match.destination_port.value for c in decoded.filter_chains] == [1, 2]
    assert decoded.default_filter_chain.name == "rest"


def test_unix_sockets_are_pipes() -> None:
    assert address("unix:///run/a.sock", 0).pipe.path == "/run/a.sock"
    assert address("unix://@abstract", 0).pipe.path == "@abstract"
    assert address("::1", 80).socket_address.address == "::1"


def test_an_inspector_that_only_some_ports_need_is_off_on_all_others() -> None:
    chains = [named("a", ChainMatch(port=80, transport=TLS_TRANSPORT)), named("b", ChainMatch(port=81))]
    (inspector,) = inbound_filters(chains, captured=False, tproxy=False)
    off = inspector.filter_disabled.not_match.destination_port_range
    assert (off.start, off.end) == (80, 81)
