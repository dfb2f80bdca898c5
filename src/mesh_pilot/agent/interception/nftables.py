"""The rules as input of ``nft -f``: one table for IPv4 and IPv6, replaced in one transaction."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.agent.interception.rules import (
    Action,
    Hook,
    Negated,
    PacketChain,
    PacketRule,
    PacketTable,
    RuleSet,
)

TABLE = "inet mesh_pilot"
REMOVE = f"table {TABLE}\ndelete table {TABLE}\n"
"""Works whether there is one or not."""

_PRIORITY = {PacketTable.RAW: -300, PacketTable.MANGLE: -150, PacketTable.NAT: -100}
"""The priorities of iptables' tables of that name."""


def rendered(rules: RuleSet) -> str:
    """Input that replaces what is there of ours."""
    lines = [REMOVE + f"table {TABLE} {{"]
    for chain in rules.chains:
        lines += [f"  chain {_name(chain.table, chain.name)} {{"]
        lines += [f"    {line}" for line in (*_base(chain, rules.families), *_lines(chain, rules.families))]
        lines += ["  }"]
    return "\n".join([*lines, "}", ""])


def _name(table: PacketTable, chain: str) -> str:
    """The chain's name: here those of all tables are in one."""
    return f"{table}_{chain}"


def _base(chain: PacketChain, families: tuple[int, ...]) -> Iterator[str]:
    if chain.hook is None:
        return
    kind = "nat" if chain.table is PacketTable.NAT else "filter"
    if chain.table is PacketTable.MANGLE and chain.hook is Hook.OUTPUT:
        kind = "route"  # a changed mark sends the packet another way
    yield f"type {kind} hook {chain.hook.lower()} priority {_PRIORITY[chain.table]}; policy accept;"
    if len(families) == 1:
        yield f"meta nfproto != ipv{families[0]} return"


def _lines(chain: PacketChain, families: tuple[int, ...]) -> Iterator[str]:
    for rule in chain.rules:
        if rule.family is None or rule.family in families:
            yield " ".join((*_matches(rule), *_action(chain.table, rule)))


def _not(value: object) -> str:
    return f"!= {value.value}" if isinstance(value, Negated) else str(value)


def _matches(rule: PacketRule) -> Iterator[str]:
    ip = "ip6" if rule.family == 6 else "ip"
    if rule.family is not None and rule.source is None and rule.destination is None:
        yield f"meta nfproto ipv{rule.family}"
    if rule.source is not None:
        yield f"{ip} saddr {rule.source}"
    if rule.destination is not None:
        yield f"{ip} daddr {_not(rule.destination)}"
    for which, interface in (("iifname", rule.came_by), ("oifname", rule.leaves_by)):
        if interface is not None:
            yield f'{which} "{interface[:-1]}*"' if interface.endswith("+") else f'{which} "{interface}"'
    if rule.protocol is not None and rule.source_port is None and rule.port is None:
        yield f"meta l4proto {rule.protocol}"
    if rule.source_port is not None:
        yield f"{rule.protocol} sport {rule.source_port}"
    if rule.port is not None:
        yield f"{rule.protocol} dport {_not(rule.port)}"
    if rule.uid is not None:
        yield f"meta skuid {rule.uid}"
    if rule.gid is not None:
        yield f"meta skgid {rule.gid}"
    for gid in rule.not_gids:
        yield f"meta skgid != {gid}"
    if rule.mark is not None:
        yield f"meta mark {_not(rule.mark)}"
    if rule.connection_mark is not None:
        yield f"ct mark {rule.connection_mark}"
    if rule.opens:
        yield "tcp flags & (fin | syn | rst | ack) == syn"
    if rule.states:
        yield f"ct state {','.join(rule.states).lower()}"


def _action(table: PacketTable, rule: PacketRule) -> tuple[str, ...]:
    match rule.action:
        case Action.JUMP:
            return ("jump", _name(table, str(rule.value)))
        case Action.REDIRECT:
            return (f"redirect to :{rule.value}",)
        case Action.TPROXY:
            ip = "ip6" if rule.family == 6 else "ip"
            return (f"tproxy {ip} to :{rule.value} meta mark set {rule.set_mark} accept",)
        case Action.MARK:
            return (f"meta mark set {rule.set_mark}",)
        case Action.SAVE_MARK:
            return ("ct mark set meta mark",)
        case Action.RESTORE_MARK:
            return ("meta mark set ct mark",)
        case Action.ZONE:
            return (f"ct zone set {rule.value} return",)
        case _:
            return (rule.action.lower(),)
