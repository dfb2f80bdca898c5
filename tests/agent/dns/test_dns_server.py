"""The agent's DNS server, asked by a client of dnspython."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.dns.server import DnsServer
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import AgentError, DnsSettings
from mesh_pilot.net.rpc.net import TcpAddress
from tests.support.name_servers import NODE, answer, no_answer, no_such_name, receive, resolving
from tests.support.troubles import is_quoted

REVIEWS = "reviews.service.consul"
ROWS = {
    REVIEWS: NameRow(("240.240.1.1",), "Consul", ports=((9080, "http"), (9090, "metrics"))),
    "dual.example": NameRow(("240.240.1.2", "2001:2::2"), "External"),
    "db.shop.svc.cluster.local": NameRow(("10.1.0.1", "10.1.0.2", "10.1.0.3"), "Kubernetes", "db", "shop"),
    "*.wild.example": NameRow(("240.240.1.3",)),
}


@pytest.mark.parametrize("tcp", [False, True])
async def test_names_of_the_mesh_are_answered_from_the_table(tcp: bool) -> None:
    async with resolving(ROWS) as at:
        response = await at.ask(REVIEWS, tcp=tcp)
        assert [rrset.to_text() for rrset in response.answer] == [f"{REVIEWS}. 30 IN A 240.240.1.1"]
        assert response.flags & dns.flags.AA
        assert await at.addresses("dual.example", "AAAA", tcp=tcp) == ["2001:2::2"]
        assert await at.addresses("dual.example", "ANY", tcp=tcp) == ["2001:2::2", "240.240.1.2"]
        assert await at.addresses("a.b.wild.example", tcp=tcp) == ["240.240.1.3"]
        assert at.server.statistics().answers["mesh"] == 4


async def test_a_host_without_such_addresses_is_no_error_and_no_data() -> None:
    async with resolving(ROWS) as at:
        for kind in ("AAAA", "HTTPS"):
            response = await at.ask(REVIEWS, kind)
            assert (response.rcode(), response.answer) == (dns.rcode.NOERROR, [])


async def test_other_records_of_a_host_are_asked_of_name_servers_and_its_name_exists_whatever_they_say() -> None:
    async with resolving(ROWS, no_such_name) as at:
        response = await at.ask(REVIEWS, "MX")
        assert (response.rcode(), response.answer) == (dns.rcode.NOERROR, [])
        assert (await at.ask("none.example", "MX")).rcode() == dns.rcode.NXDOMAIN
        assert at.upstreams[0].names == [REVIEWS, "none.example"]


async def test_the_question_comes_back_in_its_own_spelling() -> None:
    async with resolving(ROWS, lambda query: answer(query, "60 A 192.0.2.1")) as at:
        for name in ("ReViews.Service.CONSUL.", "wWw.Example."):
            assert (await at.ask(name)).question[0].name.to_text() == name


async def test_services_have_their_ports() -> None:
    async with resolving(ROWS, no_such_name) as at:
        response = await at.ask(f"_Http._tcp.{REVIEWS}", "SRV")
        assert [rrset.to_text() for rrset in response.answer] == [
            f"_Http._tcp.{REVIEWS}. 30 IN SRV 0 0 9080 {REVIEWS}."
        ]
        assert [rrset.to_text() for rrset in response.additional] == [f"{REVIEWS}. 30 IN A 240.240.1.1"]
        response = await at.ask(REVIEWS, "SRV")
        assert sorted(data.port for data in response.answer[0]) == [9080, 9090]
        assert at.upstreams[0].asked == []
        for name in (f"_mongodb._tcp.{REVIEWS}", f"_http.{REVIEWS}", "db.shop"):  # who else might know
            response = await at.ask(name, "SRV")
            assert response.answer == []
        assert len(at.upstreams[0].asked) == 3


async def test_an_address_that_is_none_does_no_harm() -> None:
    async with resolving({"odd.example": NameRow(("10.0.0.0/8", "240.240.1.1", "::x", ""))}) as at:
        assert await at.addresses("odd.example", "ANY") == ["240.240.1.1"]


async def test_addresses_take_turns() -> None:
    async with resolving(ROWS) as at:
        first = {(await at.ask("db")).answer[0][0].to_text() for _ in range(3)}
        assert first == {"10.1.0.1", "10.1.0.2", "10.1.0.3"}


@pytest.mark.parametrize("tcp", [False, True])
async def test_queries_wait_a_moment_for_the_first_table(tcp: bool, autojump_clock: MockClock) -> None:
    async with resolving(None, no_such_name) as at, trio.open_nursery() as nursery:
        found: list[list[str]] = []

        async def ask() -> None:
            found.append(await at.addresses(REVIEWS, tcp=tcp))

        nursery.start_soon(ask)
        await trio.sleep(1.9)
        assert (found, at.upstreams[0].asked) == ([], [])
        at.names.set(ROWS)
        await trio.sleep(0.01)
        assert (found, at.upstreams[0].asked) == ([["240.240.1.1"]], [])


async def test_without_a_table_names_are_asked_of_name_servers_after_that_moment(autojump_clock: MockClock) -> None:
    async with resolving(None, no_such_name) as at:
        assert (await at.ask(REVIEWS)).rcode() == dns.rcode.NXDOMAIN
        assert trio.current_time() == pytest.approx(3.0, abs=0.1)
        assert (await at.ask("other.example")).rcode() == dns.rcode.NXDOMAIN
        assert trio.current_time() == pytest.approx(3.0, abs=0.1)


async def test_another_table_is_in_force_at_once() -> None:
    async with resolving({}, no_such_name) as at:
        assert (await at.ask(REVIEWS)).rcode() == dns.rcode.NXDOMAIN
        at.names.set(ROWS)
        await trio.testing.wait_all_tasks_blocked()
        assert await at.addresses(REVIEWS) == ["240.240.1.1"]
        at.names.set({})
        await trio.testing.wait_all_tasks_blocked()
        assert (await at.ask(REVIEWS)).rcode() == dns.rcode.NXDOMAIN


async def test_automatic_addresses_have_names_and_other_reverse_lookups_are_forwarded() -> None:
    async with resolving(ROWS, no_such_name) as at:
        response = await at.ask("1.1.240.240.in-addr.arpa", "PTR")
        assert [rrset[0].to_text() for rrset in response.answer] == [f"{REVIEWS}."]
        assert (await at.ask("9.9.240.240.in-addr.arpa", "PTR")).rcode() == dns.rcode.NXDOMAIN
        assert at.upstreams[0].asked == []
        await at.ask("1.0.1.10.in-addr.arpa", "PTR")
        assert len(at.upstreams[0].asked) == 1


async def test_an_answer_too_large_for_udp_is_cut_and_whole_over_tcp() -> None:
    rows = {"many.example": NameRow(tuple(f"10.2.{n // 250}.{n % 250}" for n in range(600)))}
    async with resolving(rows) as at:
        for options, size in (
            ({}, 512),
            ({"use_edns": 0, "payload": 1232}, 1232),
            ({"use_edns": 0, "payload": 9000}, 4096),
        ):
            query = dns.message.make_query("many.example", "A", **options)
            packet = await at.send(query.to_wire())
            assert size - 16 < len(packet) <= size
            assert dns.message.from_wire(packet).flags & dns.flags.TC
        whole = await at.ask("many.example", tcp=True)
        assert len(whole.answer[0]) == 600
        assert not whole.flags & dns.flags.TC


async def test_answers_are_kept_for_as_long_as_they_say(autojump_clock: MockClock) -> None:
    async with resolving({}, lambda query: answer(query, "60 A 192.0.2.1")) as at:
        await at.ask("www.example")
        await trio.sleep(20)
        response = await at.ask("WWW.example", use_edns=False)
        assert response.answer[0].ttl == 40
        assert len(at.upstreams[0].asked) == 1
        await trio.sleep(41)
        assert (await at.ask("www.example")).answer[0].ttl == 60
        assert len(at.upstreams[0].asked) == 2


async def test_names_that_are_not_are_kept_for_as_long_as_their_zone_says(autojump_clock: MockClock) -> None:
    async with resolving({}, no_such_name) as at:
        for seconds in (0, 19, 2):
            await trio.sleep(seconds)
            assert (await at.ask("none.example")).rcode() == dns.rcode.NXDOMAIN
        assert len(at.upstreams[0].asked) == 2


async def test_an_alias_of_a_name_without_such_records_is_kept_for_as_long_as_its_zone_says(
    autojump_clock: MockClock,
) -> None:
    def alias(query: dns.message.Message) -> dns.message.Message:
        return answer(query, "3000 CNAME elsewhere.example.", authority=("3000 SOA ns. root. 1 60 60 60 20",))

    async with resolving({}, alias) as at:
        for seconds in (0, 19, 2):
            await trio.sleep(seconds)
            await at.ask("www.example", "AAAA")
        assert len(at.upstreams[0].asked) == 2


async def test_name_servers_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 192.0.2.1\nsearch one.example\n")
    async with resolving(ROWS, resolv_conf=resolv_conf) as at:
        at.server.reread_seconds = 0.0
        assert at.server.statistics().name_servers == ("192.0.2.1:53",)
        assert await at.addresses(f"{REVIEWS}.one.example") == ["240.240.1.1"]
        resolv_conf.write_text("nameserver 192.0.2.2\nnameserver 192.0.2.3\nsearch two.example\n")
        assert await at.addresses(f"{REVIEWS}.two.example") == ["240.240.1.1"]
        assert at.server.statistics().name_servers == ("192.0.2.2:53", "192.0.2.3:53")
        resolv_conf.unlink()
        assert await at.addresses(f"{REVIEWS}.two.example") == ["240.240.1.1"]
        assert at.server.statistics().name_servers == ("192.0.2.2:53", "192.0.2.3:53")


async def test_a_flood_of_names_that_nobody_answers_leaves_the_mesh_its_own(autojump_clock: MockClock) -> None:
    async with resolving(ROWS, no_answer) as at:
        with trio.socket.socket(type=socket.SOCK_DGRAM) as flood:
            await flood.connect(("127.0.0.1", at.server.port))
            for number in range(1800):
                await flood.send(dns.message.make_query(f"n{number}.example", "A").to_wire())
                if not number % 100:
                    assert await at.addresses(REVIEWS) == ["240.240.1.1"]
            statistics = at.server.statistics()
            assert statistics.waiting <= 1024
            assert statistics.answers["overloaded"] + statistics.dropped > 1000
            assert statistics.exchanges["sent"] <= 256
        await trio.sleep(5)
        assert at.server.statistics().waiting == 0


@pytest.mark.parametrize("tcp", [False, True])
async def test_hostile_packets_leave_the_next_client_its_answer(tcp: bool) -> None:
    whole = dns.message.make_query("www.example", "A", use_edns=0).to_wire()
    chance = random.Random(5)
    async with resolving(ROWS, no_such_name) as at:
        for number in range(300):
            packet = bytearray(whole[: chance.randrange(len(whole))] if number % 3 else whole)
            for _ in range(number % 7):
                packet[chance.randrange(len(packet) or 1) : 1] = bytes([chance.randrange(256)])
            if tcp:
                async with await at.connect() as stream:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(chance.randrange(65536).to_bytes(2, "big") + packet)
            else:
                with trio.socket.socket(type=socket.SOCK_DGRAM) as sock:
                    await sock.sendto(bytes(packet), ("127.0.0.1", at.server.port))
        assert await at.addresses(REVIEWS, tcp=tcp) == ["240.240.1.1"]


async def test_a_client_that_does_not_read_is_closed(autojump_clock: MockClock) -> None:
    rows = {"many.example": NameRow(tuple(f"10.2.{n // 250}.{n % 250}" for n in range(3000)))}
    query = dns.message.make_query("many.example", "A").to_wire()
    async with resolving(rows) as at, await at.connect() as stream:
        with trio.move_on_after(60), suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(len(query).to_bytes(2, "big") + query)
        assert trio.current_time() < 60
        await trio.testing.wait_all_tasks_blocked()
        assert at.server.statistics().connections == 0


async def test_a_large_answer_is_fetched_over_tcp_and_cut_for_clients_over_udp() -> None:
    records = [f"60 A 10.3.0.{n}" for n in range(200)]
    async with resolving({}, lambda query: answer(query, *records)) as at:
        assert (await at.ask("large.example")).flags & dns.flags.TC
        assert len(await at.addresses("large.example", tcp=True)) == 200
        assert (at.upstreams[0].over_tcp, len(at.upstreams[0].asked)) == (1, 2)


async def test_while_name_servers_are_away_stale_answers_serve(autojump_clock: MockClock) -> None:
    async with resolving({}, lambda query: answer(query, "60 A 192.0.2.1")) as at:
        await at.ask("www.example")
        at.upstreams[0].script = no_answer
        await trio.sleep(3600)
        began = trio.current_time()
        response = await at.ask("www.example")
        assert response.answer[0].to_text() == "www.example. 30 IN A 192.0.2.1"
        assert trio.current_time() - began == pytest.approx(1.8, abs=0.1)
        assert (await at.ask("other.example")).rcode() == dns.rcode.SERVFAIL
        await trio.sleep(2 * 86400)
        assert (await at.ask("www.example")).rcode() == dns.rcode.SERVFAIL
        assert at.server.statistics().answers == {
            "mesh": 0, "cached": 0, "stale": 1, "forwarded": 1, "failed": 2, "refused": 0, "overloaded": 0
        }  # fmt: skip


async def test_one_that_does_not_answer_costs_a_moment_once(autojump_clock: MockClock) -> None:
    async with resolving({}, no_answer, lambda query: answer(query, "0 A 192.0.2.1")) as at:
        times = []
        for _ in range(3):
            began = trio.current_time()
            assert await at.addresses("www.example") == ["192.0.2.1"]
            times.append(trio.current_time() - began)
        assert times == pytest.approx([0.8, 0, 0], abs=0.01)
        assert len(at.upstreams[0].asked) == 1


async def test_one_that_refuses_is_passed_over_at_once(autojump_clock: MockClock) -> None:
    async with resolving(
        {}, lambda query: answer(query, code=dns.rcode.REFUSED), lambda query: answer(query, "0 A 192.0.2.1")
    ) as at:
        began = trio.current_time()
        assert await at.addresses("www.example") == ["192.0.2.1"]
        assert trio.current_time() - began < 0.1
        at.upstreams[1].script = at.upstreams[0].script
        assert (await at.ask("www.example")).rcode() == dns.rcode.NOERROR  # the answer before, though of ttl 0: stale
        assert (await at.ask("other.example")).rcode() == dns.rcode.REFUSED


async def test_a_lost_packet_is_sent_again(autojump_clock: MockClock) -> None:
    lost: list[int] = []

    def second_time(query: dns.message.Message) -> dns.message.Message | None:
        lost.append(query.id)
        return answer(query, "60 A 192.0.2.1") if len(lost) == 2 else None

    async with resolving({}, second_time) as at:
        assert await at.addresses("www.example") == ["192.0.2.1"]
    assert len(set(lost)) == 2


async def test_clients_that_ask_the_same_share_one_exchange(autojump_clock: MockClock) -> None:
    async with resolving({}, no_answer) as at, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(at.ask, "www.example")
        await trio.sleep(0.5)
        assert len(at.upstreams[0].asked) == 1
        at.upstreams[0].script = lambda query: answer(query, "60 A 192.0.2.1")


async def test_queries_that_come_back_to_us_are_noticed_and_end_at_once(autojump_clock: MockClock) -> None:
    """As with a redirection of port 53 that spares not even the agent: source addresses stay."""
    async with resolving(ROWS) as at:
        ours = TcpAddress("127.0.0.1", at.server.port)
        at.server.name_servers.use([ours], is_own=lambda _: False)
        assert (await at.ask("www.example")).rcode() == dns.rcode.REFUSED
        assert trio.current_time() < 0.1
        assert at.server.statistics().exchanges["looped"] == 1


async def test_the_server_is_none_of_its_own_name_servers() -> None:
    async with resolving(ROWS) as at:
        ours = TcpAddress("127.0.0.1", at.server.port)
        at.server.name_servers.use([ours, TcpAddress("127.0.0.1", 53)], at.server.is_own)
        assert at.server.statistics().name_servers == ("127.0.0.1:53",)


async def test_queries_of_one_connection_are_answered_as_answers_come(autojump_clock: MockClock) -> None:
    async with resolving(ROWS, no_answer) as at, await at.connect() as stream:
        slow, fast = dns.message.make_query("www.example", "A"), dns.message.make_query(REVIEWS, "A")
        packets = [query.to_wire() for query in (slow, fast)]
        await stream.send_all(b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets))
        assert fast.is_response(dns.message.from_wire(await receive(stream)))
        assert slow.is_response(dns.message.from_wire(await receive(stream)))


async def test_a_connection_that_says_nothing_is_closed(autojump_clock: MockClock) -> None:
    async with resolving(ROWS) as at, await at.connect() as stream:
        await stream.send_all(b"\0")
        assert await stream.receive_some() == b""
        assert trio.current_time() >= 10


async def test_many_slow_clients_do_not_keep_out_the_next() -> None:
    async with resolving(ROWS) as at:
        slow = [await at.connect() for _ in range(100)]
        assert await at.addresses(REVIEWS, tcp=True) == ["240.240.1.1"]
        assert at.server.statistics().connections <= 64
        for stream in slow:
            await stream.aclose()


async def test_a_port_that_is_taken_is_one_clear_line() -> None:
    async with resolving(ROWS) as at:
        second = DnsServer(DnsSettings(True), at.server.port, NODE, Observable(None))
        with pytest.raises(AgentError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use") as taken:
            await second.run()
        assert is_quoted(f"mesh-pilot: {taken.value}")


@pytest.mark.parametrize("upstream", ["ns.example:53", "unix:///x", "10.0.0.1:x"])
def test_a_name_server_that_is_no_address_is_refused(upstream: str) -> None:
    with pytest.raises(AgentError, match="is not a name server"):
        DnsServer(DnsSettings(True, upstreams=(upstream,)), 0, NODE, Observable(None))


async def test_a_query_between_two_versions_of_the_agent_waits_in_the_socket() -> None:
    handover = Handover()
    settings = DnsSettings(True, upstreams=("127.0.0.1:9",))
    query = dns.message.make_query(REVIEWS, "A")
    async with trio.open_nursery() as nursery:
        first = DnsServer(settings, 0, NODE, Observable(ROWS), handover)
        await nursery.start(first.run)
        nursery.cancel_scope.cancel()
    with trio.socket.socket(type=socket.SOCK_DGRAM) as client:
        await client.connect(("127.0.0.1", first.port))
        await client.send(query.to_wire())
        async with trio.open_nursery() as nursery:
            second = DnsServer(settings, 0, NODE, Observable(ROWS), handover)
            await nursery.start(second.run)
            with trio.fail_after(60):
                assert query.is_response(dns.message.from_wire(await client.recv(512)))
            nursery.cancel_scope.cancel()
    handover.close()
