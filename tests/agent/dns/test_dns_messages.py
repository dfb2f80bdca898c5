"""DNS messages and names: against dnspython and a simple model, and with whatever bytes there are."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.dns import cache as cache_module
from mesh_pilot.agent.dns.cache import STALE_SECONDS, AnswerCache
from mesh_pilot.agent.dns.messages import (
    MessageError,
    address_data,
    for_client,
    read_answer,
    read_query,
    write_answer,
)
from mesh_pilot.agent.dns.names import MeshNames
from mesh_pilot.agent.dns.resolv_conf import ResolverConfig, parse_resolv_conf
from mesh_pilot.agent.relay.subscriptions import NameRow

LABELS = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
TYPES = st.sampled_from(["A", "AAAA", "SRV", "PTR", "MX", "TXT", "ANY", "HTTPS"])
ADDRESSES = st.lists(st.ip_addresses().map(str), max_size=60, unique=True)


@st.composite
def queries(draw: st.DrawFn) -> dns.message.Message:
    payload = draw(st.sampled_from([None, 100, 512, 1232, 9000]))
    options = {} if payload is None else {"use_edns": 0, "payload": payload, "want_dnssec": draw(st.booleans())}
    return dns.message.make_query(draw(NAMES), draw(TYPES), id=draw(st.integers(0, 65535)), **options)


@given(queries(), ADDRESSES)
def test_our_answers_are_what_a_client_reads_and_of_the_size_that_it_takes(
    asked: dns.message.Message, addresses: list[str]
) -> None:
    query = read_query(asked.to_wire())
    assert query is not None and query.is_plain
    assert query.name == asked.question[0].name.to_text(omit_final_dot=True).lower()
    data = [address_data(address) for address in addresses]
    packet = write_answer(query, data, ttl=30, limit=query.udp_size)
    assert len(packet) <= max(512, min(asked.payload, 4096))
    answer = dns.message.from_wire(packet)
    assert asked.is_response(answer) and answer.question[0].to_text() == asked.question[0].to_text()
    found = [str(ip_address(each.address)) for rrset in answer.answer for each in rrset]
    assert len(found) == len(set(found)) and set(found) <= set(addresses)
    assert bool(answer.flags & dns.flags.TC) == (len(found) < len(addresses))
    assert (answer.edns >= 0) == (asked.edns >= 0)
    whole = dns.message.from_wire(write_answer(query, data, ttl=30))
    assert {str(ip_address(each.address)) for rrset in whole.answer for each in rrset} == set(addresses)


@given(queries(), st.integers(0, 65535), st.lists(st.integers(0, 5000), max_size=40), st.integers(0, 4000))
def test_a_name_servers_answer_is_passed_on_with_its_times_to_live_reduced(
    asked: dns.message.Message, id_: int, ttls: list[int], age: int
) -> None:
    query = read_query(asked.to_wire())
    assert query is not None
    upstream = dns.message.from_wire(id_.to_bytes(2, "big") + query.upstream[2:])
    assert upstream.question[0].name == asked.question[0].name
    response = dns.message.make_response(upstream)
    for number, ttl in enumerate(ttls):
        owner = dns.name.Name([f"n{number}".encode(), *upstream.question[0].name.labels])
        response.answer.append(dns.rrset.from_text(owner, ttl, "IN", "A", "192.0.2.1"))
    read = read_answer(response.to_wire(max_size=65535), query.upstream, id_)
    assert read.ttl == min([*ttls, 3600]) if ttls else read.ttl == 0
    got = dns.message.from_wire(for_client(read.aged(age), query))
    assert asked.is_response(got) and got.question[0].to_text() == asked.question[0].to_text()
    assert [rrset.ttl for rrset in got.answer] == [max(0, ttl - age) for ttl in ttls]
    cut = for_client(read.message, query, limit=query.udp_size)
    assert len(cut) <= query.udp_size
    assert asked.is_response(dns.message.from_wire(cut))


@given(st.binary(max_size=600))
def test_any_bytes_are_a_query_a_refusal_or_nothing(packet: bytes) -> None:
    _judge(packet)


@given(queries(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=6), st.integers(0, 80))
def test_damaged_queries_are_answered_or_passed_on_or_dropped(
    asked: dns.message.Message, damage: list[tuple[int, int]], end: int
) -> None:
    packet = bytearray(asked.to_wire())
    for position, value in damage:
        packet[position % len(packet)] = value
    _judge(bytes(packet))
    _judge(bytes(packet[:end]))


def _judge(packet: bytes) -> None:
    query = read_query(packet)
    if query is None:
        assert len(packet) < 12 or packet[2] & 0x80
        return
    if query.refusal is not None:
        answer = write_answer(query, code=query.refusal)
        assert answer[:2] == packet[:2] and answer[2] & 0x80
        assert len(answer) <= len(packet) + 11
        return
    assert query.upstream[2:4] and len(query.upstream) <= len(packet)
    assert len(for_client(bytes(12) + query.question + bytes(5000), query, limit=query.udp_size)) <= query.udp_size


@given(st.binary(max_size=300), st.integers(0, 65535))
def test_any_bytes_from_a_name_server_are_an_answer_or_an_error(packet: bytes, id_: int) -> None:
    query = read_query(dns.message.make_query("www.example", "A").to_wire())
    assert query is not None
    for message in (packet, struct.pack("!HHHHHH", id_, 0x8180, 1, 9, 9, 9) + query.question + packet):
        try:
            read = read_answer(message, query.upstream, id_)
        except MessageError:
            continue
        assert (
            read.message[2:] == message[:2][2:] + message[2:12] + query.question + message[12 + len(query.question) :]
        )


def test_an_answer_to_another_question_is_none() -> None:
    query = read_query(dns.message.make_query("www.example", "A").to_wire())
    assert query is not None
    other = dns.message.make_response(dns.message.make_query("www.evil", "A", id=7))
    for packet in (other.to_wire(), b"\0\7" + query.upstream[2:], b"\0\7"):
        with pytest.raises(MessageError):
            read_answer(packet, query.upstream, 7)


# -- names

HOSTS = {
    "reviews.service.consul": NameRow(("240.240.0.1",), "Consul"),
    "db.shop.svc.cluster.local": NameRow(("10.0.0.1",), "Kubernetes", "db", "shop"),
    "api.other.svc.cluster.local": NameRow(("10.0.0.2",), "Kubernetes", "api", "other"),
    "*.wild.example": NameRow(("240.240.0.3",)),
    "*.deep.wild.example": NameRow(("240.240.0.4",)),
    "exact.wild.example": NameRow(("240.240.0.5",)),
}
SEARCH = ("corp.example", "lab.example")


def model(name: str) -> str | None:
    """The host that a name means, by listing all spellings of all hosts."""
    plain: dict[str, str] = {}
    for host, row in HOSTS.items():
        spellings = [host]
        if row.short_name:
            spellings += [f"{row.short_name}.{row.namespace}", f"{row.short_name}.{row.namespace}.svc"]
            spellings += [row.short_name] if row.namespace == "shop" else []
        for spelling in spellings:
            for suffix in ("", *(f".{domain}" for domain in SEARCH)):
                plain[spelling + suffix] = host
    if name in plain:
        return plain[name]
    labels = name.split(".")
    longest = (f"*.{'.'.join(labels[n:])}" for n in range(1, len(labels)))
    return next((plain[each] for each in longest if each in plain), None)


PARTS = st.sampled_from(
    [
        "reviews",
        "service",
        "consul",
        "db",
        "shop",
        "svc",
        "cluster",
        "local",
        "api",
        "other",
        "wild",
        "deep",
        "exact",
        "example",
        "corp",
        "lab",
        "*",
        "service.consul",
        "corp.example",
        "svc.cluster.local",
        "wild.example",
    ]
)


@given(st.lists(PARTS, min_size=1, max_size=5).map(".".join))
def test_names_are_found_as_by_a_list_of_all_spellings(name: str) -> None:
    found = MeshNames(HOSTS, "shop", "cluster.local", SEARCH).find(name)
    assert (found.host if found else None) == model(name)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("reviews.service.consul", "reviews.service.consul"),
        ("reviews.service.consul.lab.example", "reviews.service.consul"),
        ("reviews", None),
        ("db", "db.shop.svc.cluster.local"),
        ("db.corp.example", "db.shop.svc.cluster.local"),
        ("api", None),
        ("api.other", "api.other.svc.cluster.local"),
        ("api.other.svc", "api.other.svc.cluster.local"),
        ("a.b.wild.example", "*.wild.example"),
        ("a.deep.wild.example", "*.deep.wild.example"),
        ("exact.wild.example", "exact.wild.example"),
        ("wild.example", None),
        ("corp.example", None),
        ("", None),
    ],
)
def test_names_as_people_say_them(name: str, host: str | None) -> None:
    found = MeshNames(HOSTS, "shop", "cluster.local", SEARCH).find(name)
    assert (found.host if found else None) == host


@pytest.mark.parametrize("address", ["241.3.4.5", "240.240.1.1", "2001:2::1:2"])
def test_automatic_addresses_lead_back_to_their_hosts(address: str) -> None:
    names = MeshNames({"a.example": NameRow((address,))})
    assert names.hosts_of(ip_address(address).reverse_pointer) == ("a.example",)
    assert names.hosts_of("1.0.0.10.in-addr.arpa") is None
    assert names.hosts_of("x.in-addr.arpa") is names.hosts_of("in-addr.arpa") is names.hosts_of("1.ip6.arpa") is None


# -- the cache


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100), st.booleans()), max_size=60))
def test_kept_answers_are_the_last_and_fresh_for_their_time(steps: list[tuple[int, int, bool]]) -> None:
    cache, known = AnswerCache(), dict[int, tuple[float, int]]()
    now = 0.0
    for name, number, put in steps:
        now += number * 7
        query = read_query(dns.message.make_query(f"n{name}.example", "A").to_wire())
        assert query is not None
        if put:
            response = dns.message.make_response(dns.message.from_wire(query.upstream))
            response.answer.append(dns.rrset.from_text(response.question[0].name, number, "IN", "A", "192.0.2.1"))
            cache.put(query.upstream, read_answer(response.to_wire(), query.upstream, 0), now)
            known[name] = now, number
        kept = cache.get(query.upstream, now)
        assert (kept is not None) == (name in known)
        if kept is not None:
            since, ttl = known[name]
            assert kept.is_fresh(now) == (now < since + ttl)
            left = dns.message.from_wire(kept.message(now)).answer[0].ttl
            assert left == (ttl - int(now - since) if kept.is_fresh(now) else 30)


def test_the_cache_is_bounded_in_number_in_bytes_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_ANSWERS", 50)
    monkeypatch.setattr(cache_module, "MAX_BYTES", 20_000)
    cache = AnswerCache()
    for number in range(90):
        query = read_query(dns.message.make_query(f"n{number}.example", "TXT").to_wire())
        assert query is not None
        response = dns.message.make_response(dns.message.from_wire(query.upstream))
        text = "x" * (250 if number % 2 else 10)
        for copy in range(12 if number % 2 else 1):
            response.answer.append(dns.rrset.from_text(f"a{copy}.", 60, "IN", "TXT", text))
        cache.put(query.upstream, read_answer(response.to_wire(), query.upstream, 0), 0.0)
        assert len(cache) <= 50 and cache.size <= 20_000
    assert cache.size > 10_000
    assert cache.get(query.upstream, 60 + STALE_SECONDS) is not None
    assert cache.get(query.upstream, 61 + STALE_SECONDS) is None


# -- resolv.conf


@pytest.mark.parametrize(
    ("text", "servers", "search"),
    [
        ("nameserver 10.0.0.2\nnameserver fe80::1%eth0\n", ("10.0.0.2", "fe80::1%eth0"), ()),
        ("domain corp.example\nsearch a.example. B.example\n", ("127.0.0.1",), ("a.example", "b.example")),
        ("# nameserver 10.0.0.3\n;search x\nnameserver nonsense\noptions ndots:5\nnameserver", ("127.0.0.1",), ()),
        ("", ("127.0.0.1",), ()),
        ("nameserver 10.0.0.2\nnameserver 10.0.0.2\n", ("10.0.0.2",), ()),
    ],
)
def test_resolv_conf(text: str, servers: tuple[str, ...], search: tuple[str, ...]) -> None:
    assert parse_resolv_conf(text) == ResolverConfig(servers, search)
