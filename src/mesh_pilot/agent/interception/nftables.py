"""The rules as input of ``nft -f``: one table for IPv4 and IPv6, replaced in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh_pilot.agent.interception.rules import (
    Action,
    Hook,
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
    """Input that replaces what is there of ours. Here the names of chains tell their tables."""
    lines = [REMOVE + f"table {TABLE} {{"]
    for chain in rules.chains:
        lines += [f"  chain {chain.table}_{chain.name} {{"]
        lines += [f"    {line}" for line in (*_base(chain, rules.families), *_lines(chain, rules.families))]
        lines += ["  }"]
    return "\n".join([*lines, "}", ""])


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
            yield " ".join((*_matches(rule), _action(chain.table, rule)))


_MATCHES: Mapping[str, str] = {
    "source": "{ip} saddr {value}",
    "destination": "{ip} daddr {no}{value}",
    "came_by": 'iifname "{value}"',
    "leaves_by": 'oifname "{value}"',
    "protocol": "meta l4proto {value}",
    "source_port": "{protocol} sport {value}",
    "port": "{protocol} dport {no}{value}",
    "uid": "meta skuid {value}",
    "gid": "meta skgid {value}",
    "not_gids": "meta skgid != {value}",
    "mark": "meta mark {no}{value}",
    "connection_mark": "ct mark {value}",
    "opens": "tcp flags & (fin | syn | rst | ack) == syn",
    "states": "ct state {value}",
}
_ACTIONS: Mapping[Action, str] = {
    Action.JUMP: "jump {table}_{value}",
    Action.REDIRECT: "redirect to :{value}",
    Action.TPROXY: "tproxy {ip} to :{value} meta mark set {mark} accept",
    Action.MARK: "meta mark set {mark}",
    Action.SAVE_MARK: "ct mark set meta mark",
    Action.RESTORE_MARK: "meta mark set ct mark",
    Action.ZONE: "ct zone set {value} return",
}


def _ip(rule: PacketRule) -> str:
    return "ip6" if rule.family == 6 else "ip"


def _matches(rule: PacketRule) -> Iterator[str]:
    if rule.family is not None and rule.source is None and rule.destination is None:
        yield f"meta nfproto ipv{rule.family}"
    for name, value, is_negated in rule.matches():
        if name == "protocol" and not (rule.source_port is None and rule.port is None):
            continue  # a port says it, too
        if name in ("came_by", "leaves_by") and value.endswith("+"):
            value = f"{value[:-1]}*"
        elif name == "states":
            value = ",".join(value).lower()
        no = "!= " if is_negated else ""
        yield _MATCHES[name].format(value=value, no=no, ip=_ip(rule), protocol=rule.protocol)


def _action(table: PacketTable, rule: PacketRule) -> str:
    words = _ACTIONS.get(rule.action, rule.action.lower())
    return words.format(value=rule.value, mark=rule.set_mark, table=table, ip=_ip(rule))
