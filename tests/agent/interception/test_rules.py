"""The rules without a kernel: what they decide, read from the text that each tool is given."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.interception import iptables, nftables
from mesh_pilot.agent.interception.iptables import TableRules
from mesh_pilot.agent.interception.rules import PacketTable, RuleSet, build
from mesh_pilot.agent.interception.settings import (
    InterceptionError,
    PortSpan,
    Redirection,
    interfaces,
    networks,
    ports,
)
from mesh_pilot.model.proxy import Interception

NOTHING: Mapping[PacketTable, TableRules] = {table: TableRules() for table in PacketTable}


@attrs.frozen
class Packet:
    """What rules look at. Marks are what earlier rules, or whoever sent it, have set."""

    hook: str
    source: str
    destination: str
    protocol: str
    sport: int
    dport: int
    came_by: str
    leaves_by: str
    uid: int
    gid: int
    mark: int
    connection_mark: int
    state: str
    opens: bool = True


Chains = Mapping[str, list[list[str]]]
"""Rules as words: conditions with their outcome, of each chain."""


def decide_iptables(rules: RuleSet, packet: Packet) -> list[str]:
    """What becomes of the packet in each table, by the text for iptables-restore."""
    family = ipaddress.ip_address(packet.destination).version
    if family not in rules.families:
        return []
    decided = []
    text = iptables.transition(NOTHING, iptables.rendered(rules, family))
    for block in text.split("COMMIT\n")[:-1]:
        table, *lines = block.strip().splitlines()
        chains: dict[str, list[str]] = {}
        for line in lines:
            if line.startswith("-A "):
                _, chain, rule = line.split(" ", 2)
                chains.setdefault(chain, []).append(rule)
        found, packet = walk(chains, packet.hook, packet, _iptables_rule)
        decided += [f"{table[1:]} {outcome}" for outcome in found]
    return decided


def decide_nftables(rules: RuleSet, packet: Packet) -> list[str]:
    """The same, by the text for nft."""
    decided = []
    text = nftables.rendered(rules)
    chains = {name: body.split("\n") for name, body in re.findall(r"chain (\S+) \{\n(.*?)\n  \}", text, re.DOTALL)}
    for table in PacketTable:
        base = f"{table}_ISTIO_{packet.hook}"
        if base in chains:
            body = {name: [line.strip() for line in lines if "type " not in line] for name, lines in chains.items()}
            found, packet = walk(body, base, packet, _nft_rule)
            decided += [f"{table} {outcome}" for outcome in found]
    return decided


def walk(chains, chain, packet, read, depth=0):  # type: ignore[no-untyped-def]  # plain recursion over both forms
    """Outcomes in order, and the packet with the marks that were set."""
    assert depth < 5
    outcomes: list[str] = []
    for line in chains.get(chain, ()):
        applies, actions = read(line, packet)
        if not applies:
            continue
        for action in actions:
            word, _, value = action.partition(" ")
            if word == "return":
                return outcomes, packet
            if word == "jump":
                more, packet = walk(chains, value, packet, read, depth + 1)
                outcomes += more
                if more and more[-1].split()[0] in ("accept", "drop", "redirect", "tproxy"):
                    return outcomes, packet
            elif word == "mark":
                packet = attrs.evolve(packet, mark=int(value))
                outcomes.append(action)
            elif word == "restore":
                packet = attrs.evolve(packet, mark=packet.connection_mark)
                outcomes.append(action)
            elif word == "zone":
                # The first zone stays.
                outcomes += [] if any(each.startswith("zone") for each in outcomes) else [action]
            else:
                outcomes.append(action)
                if word in ("accept", "drop", "redirect", "tproxy"):
                    return outcomes, packet
    return outcomes, packet


def _in(address: str, network: str) -> bool:
    one = ipaddress.ip_network(network)
    return one.version == ipaddress.ip_address(address).version and ipaddress.ip_address(address) in one


def _span(port: int, text: str) -> bool:
    first, _, last = text.replace("-", ":").partition(":")
    return int(first) <= port <= int(last or first)


def _iptables_rule(line: str, packet: Packet) -> tuple[bool, list[str]]:
    words = line.split()
    conditions: list[bool] = []
    negated = False
    position = 0
    while position < len(words):
        word, value = words[position], words[position + 1] if position + 1 < len(words) else ""
        if word == "!":
            negated, position = True, position + 1
            continue
        position += 2
        match word:
            case "-m":
                continue
            case "-s":
                holds = _in(packet.source, value)
            case "-d":
                holds = _in(packet.destination, value)
            case "-i" | "-o":
                name = packet.came_by if word == "-i" else packet.leaves_by
                holds = name.startswith(value[:-1]) if value.endswith("+") else name == value
            case "-p":
                holds = packet.protocol == value
            case "--sport":
                holds = _span(packet.sport, value)
            case "--dport":
                holds = _span(packet.dport, value)
            case "--uid-owner":
                holds = packet.uid == int(value)
            case "--gid-owner":
                holds = packet.gid == int(value)
            case "--mark":
                holds = (packet.connection_mark if "connmark" in words else packet.mark) == int(value, 0)
            case "--tcp-flags":
                assert value == "FIN,SYN,RST,ACK" and words[position] == "SYN"
                position += 1
                holds = packet.opens
            case "--ctstate":
                holds = packet.state in value.split(",")
            case "-j":
                return all(conditions), _iptables_target(value, words[position:])
            case _:
                raise AssertionError(line)
        conditions.append(holds != negated)
        negated = False
    raise AssertionError(line)


def _iptables_target(target: str, options: list[str]) -> list[str]:
    given = dict(zip(options[::2], options[1::2], strict=False))
    match target:
        case "RETURN" | "ACCEPT" | "DROP":
            return [target.lower()]
        case "REDIRECT":
            return [f"redirect {given['--to-ports']}"]
        case "TPROXY":
            mark = int(given["--tproxy-mark"].partition("/")[0], 0)
            return [f"mark {mark}", f"tproxy {given['--on-port']}"]
        case "MARK":
            return [f"mark {int(given['--set-mark'], 0)}"]
        case "CONNMARK":
            return ["save" if options == ["--save-mark"] else "restore"]
        case "CT":
            return [f"zone {given['--zone']}"]
        case _:
            return [f"jump {target}"]


def _nft_rule(line: str, packet: Packet) -> tuple[bool, list[str]]:
    family = ipaddress.ip_address(packet.destination).version
    rest = line
    conditions: list[bool] = []
    patterns = {
        r"meta nfproto (!= )?ipv(\d)": lambda text: family == int(text),
        r"ip6? saddr (!= )?(\S+)": lambda text: _in(packet.source, text),
        r"ip6? daddr (!= )?(\S+)": lambda text: _in(packet.destination, text),
        r'iifname (!= )?"(\S+)"': lambda text: _nft_name(packet.came_by, text),
        r'oifname (!= )?"(\S+)"': lambda text: _nft_name(packet.leaves_by, text),
        r"meta l4proto (!= )?(\S+)": lambda text: packet.protocol == text,
        r"meta skuid (!= )?(\d+)": lambda text: packet.uid == int(text),
        r"meta skgid (!= )?(\d+)": lambda text: packet.gid == int(text),
        r"meta mark (!= )?(\d+)": lambda text: packet.mark == int(text),
        r"ct mark (!= )?(\d+)": lambda text: packet.connection_mark == int(text),
        r"ct state (!= )?(\S+)": lambda text: packet.state.lower() in text.split(","),
    }
    while True:
        if found := re.match(r"tcp flags & \(fin \| syn \| rst \| ack\) == syn ", rest):
            conditions += [packet.protocol == "tcp", packet.opens]
        elif found := re.match(r"(tcp|udp) (sport|dport) (!= )?(\S+) ", rest):
            port = packet.sport if found[2] == "sport" else packet.dport
            # As nft: the protocol is its own condition, which is not negated.
            conditions += [packet.protocol == found[1], _span(port, found[4]) != bool(found[3])]
        else:
            for pattern, holds in patterns.items():
                if found := re.match(rf"{pattern} ", rest):
                    # A rule about addresses of one family applies to no packet of the other.
                    wrong = pattern.startswith("ip") and (family == 6) != rest.startswith("ip6")
                    conditions.append(not wrong and holds(found[2]) != bool(found[1]))
                    break
            else:
                return all(conditions), _nft_statements(rest)
        rest = rest[found.end() :]


def _nft_name(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def _nft_statements(text: str) -> list[str]:
    if found := re.fullmatch(r"tproxy ip6? to :(\d+) meta mark set (\d+) accept", text):
        return [f"mark {found[2]}", f"tproxy {found[1]}"]
    if found := re.fullmatch(r"redirect to :(\d+)", text):
        return [f"redirect {found[1]}"]
    if found := re.fullmatch(r"meta mark set (\d+)", text):
        return [f"mark {found[1]}"]
    if found := re.fullmatch(r"ct zone set (\d) return", text):
        return [f"zone {found[1]}", "return"]
    if found := re.fullmatch(r"jump (\S+)", text):
        return [f"jump {found[1]}"]
    return [{"ct mark set meta mark": "save", "meta mark set ct mark": "restore"}.get(text, text)]


# Few values, so that packets meet rules.
ADDRESSES = ("127.0.0.1", "127.0.0.6", "10.0.0.1", "10.1.0.9", "192.0.2.7", "::1", "::6", "fd00::1", "2001:db8::1")
PORTS = (22, 53, 80, 443, 8301, 15020, 15053)
IDS = (0, 33, 1000, 1337)
spans = st.lists(
    st.builds(lambda a, b: PortSpan(min(a, b), max(a, b)), st.sampled_from(PORTS), st.sampled_from(PORTS)), max_size=2
).map(tuple)
ranges = st.lists(
    st.sampled_from(("10.0.0.0/8", "10.1.0.0/16", "127.0.0.0/8", "fd00::/8", "::1/128", "192.0.2.7/32")), max_size=2
).map(lambda texts: networks(",".join(texts)))
names = st.lists(st.sampled_from(("eth0", "eth+", "virbr0")), max_size=2, unique=True).map(tuple)
ids = st.lists(st.sampled_from(IDS), max_size=2, unique=True).map(tuple)
redirections = st.builds(
    Redirection,
    proxy_uids=st.sampled_from(((1337,), (1337, 33))),
    proxy_gids=ids,
    mode=st.sampled_from((Interception.REDIRECT, Interception.TPROXY)),
    inbound_ports=st.none() | spans,
    inbound_excluded=spans,
    outbound_networks=st.none() | ranges,
    outbound_networks_excluded=ranges,
    outbound_ports=spans,
    outbound_ports_excluded=spans,
    groups=st.none() | ids,
    groups_excluded=ids,
    interfaces_excluded=names,
    internal_interfaces=names,
    dns_port=st.sampled_from((0, 15053)),
    dns_servers=st.none()
    | st.lists(st.sampled_from([ipaddress.ip_address(each) for each in ADDRESSES]), max_size=2).map(tuple),
    drop_invalid=st.booleans(),
    ipv4=st.just(True),
    ipv6=st.booleans(),
)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    destination = draw(st.sampled_from(ADDRESSES))
    version = ipaddress.ip_address(destination).version
    hook = draw(st.sampled_from(("PREROUTING", "OUTPUT")))
    interface = draw(st.sampled_from(("lo", "eth0", "eth1", "virbr0", "wlan0")))
    leaves = hook == "OUTPUT"
    return Packet(
        hook,
        draw(st.sampled_from([each for each in ADDRESSES if ipaddress.ip_address(each).version == version])),
        destination,
        draw(st.sampled_from(("tcp", "udp"))),
        draw(st.sampled_from(PORTS)),
        draw(st.sampled_from(PORTS)),
        "" if leaves else interface,
        interface if leaves else "",
        draw(st.sampled_from(IDS)) if leaves else -1,
        draw(st.sampled_from(IDS)) if leaves else -1,
        draw(st.sampled_from((0, 1337, 1338))),
        draw(st.sampled_from((0, 1337))),
        draw(st.sampled_from(("NEW", "ESTABLISHED", "INVALID"))),
        draw(st.booleans()),
    )


@given(redirections, packets())
def test_both_tools_decide_alike(wanted: Redirection, packet: Packet) -> None:
    rules = build(wanted)
    assert decide_iptables(rules, packet) == decide_nftables(rules, packet)


@given(redirections, packets())
def test_the_proxys_connections_to_others_are_never_captured(wanted: Redirection, packet: Packet) -> None:
    own = attrs.evolve(
        packet,
        hook="OUTPUT",
        uid=1337,
        gid=1337,
        came_by="",
        leaves_by="eth0",
        protocol="tcp",
    )
    assert not any("redirect" in outcome for outcome in decide_iptables(build(wanted), own))


@given(redirections, packets())
def test_no_packet_from_outside_is_sent_to_the_outbound_port_but_of_a_virtual_machine(
    wanted: Redirection, packet: Packet
) -> None:
    wanted = attrs.evolve(wanted, internal_interfaces=())
    packet = attrs.evolve(packet, hook="PREROUTING")
    assert not any(outcome.endswith(" 15001") for outcome in decide_iptables(build(wanted), packet))


@given(redirections, packets())
def test_only_a_packet_that_opens_a_connection_is_led_to_envoy_or_the_agent(
    wanted: Redirection, packet: Packet
) -> None:
    later = attrs.evolve(packet, protocol="tcp", opens=False)
    decided = decide_iptables(build(wanted), later)
    assert not any(word in outcome for outcome in decided for word in ("redirect", "tproxy"))


@given(redirections, redirections)
def test_a_transition_makes_one_set_of_rules_into_another(before: Redirection, after: Redirection) -> None:
    first, second = (iptables.rendered(build(each), 4) for each in (before, after))
    assert restored(first, iptables.transition(first, second)) == {t: r for t, r in second.items() if r}
    assert restored(second, iptables.transition(second, NOTHING)) == {}


def restored(current: Mapping[PacketTable, TableRules], text: str) -> dict[PacketTable, TableRules]:
    """A model of iptables-restore --noflush, as strict as the real one."""
    tables = {
        table: ({name: list(rules) for name, rules in one.chains.items()}, list(one.jumps))
        for table, one in current.items()
    }
    table = PacketTable.NAT
    for line in text.splitlines():
        chains, jumps = tables[table]
        word, _, rest = line.partition(" ")
        if line.startswith("*"):
            table = PacketTable(line[1:])
        elif line.startswith(":"):
            chains[word[1:]] = []
        elif word in ("-A", "-D"):
            chain, _, rule = rest.partition(" ")
            if chain in chains:
                assert word == "-A"
                chains[chain].append(rule)
            elif word == "-A":
                jumps.append((chain, rule))
            else:
                jumps.remove((chain, rule))
        elif word == "-X":
            users = [rule for rules in chains.values() for rule in rules] + [rule for _, rule in jumps]
            assert not chains[rest] and not any(rule.endswith(f"-j {rest}") for rule in users)
            del chains[rest]
    found = {
        table: TableRules({name: tuple(rules) for name, rules in chains.items()}, tuple(jumps))
        for table, (chains, jumps) in tables.items()
    }
    return {table: rules for table, rules in found.items() if rules}


def test_what_iptables_saves_is_read_back_and_others_rules_are_not_ours() -> None:
    text = """\
*filter
-A INPUT -j ISTIO_ELSEWHERE
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_EMPTY - [0:0]
-A PREROUTING -j DOCKER
-A OUTPUT -m comment --comment "about ISTIO_OUTPUT" -j DOCKER
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p tcp -j RETURN
COMMIT
"""
    found = iptables.saved(text)
    assert found[PacketTable.NAT] == TableRules(
        {"ISTIO_OUTPUT": ("-p tcp -j RETURN",), "ISTIO_EMPTY": ()}, (("OUTPUT", "-j ISTIO_OUTPUT"),)
    )
    assert not found[PacketTable.MANGLE] and not found[PacketTable.RAW]


@pytest.mark.parametrize("text", ["0", "65536", "80-70", "http", "-1", "80,,x", "1-2-3"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(InterceptionError, match="is not a port"):
        ports(text)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "everything", "10.0.0.0/8;::/0"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(InterceptionError, match="is not a range of addresses"):
        networks(text)


@pytest.mark.parametrize("text", ["lo", "a-name-that-is-too-long", 'eth0"; drop', "eth 0"])
def test_what_is_no_interface_is_refused(text: str) -> None:
    with pytest.raises(InterceptionError, match="is not a network interface"):
        interfaces(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": Interception.NONE},
        {"proxy_uids": (), "proxy_gids": ()},
        {"outbound_port": 15006},
        {"ipv4": False},
        {"mark": 1338},
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: Mapping[str, object]) -> None:
    with pytest.raises(InterceptionError):
        Redirection(**fields)  # type: ignore[arg-type]  # one field each
