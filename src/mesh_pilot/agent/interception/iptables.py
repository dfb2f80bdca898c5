"""The rules as input of ``iptables-restore --noflush``, and what is read from ``iptables-save``.

Each table changes as a whole. What is there of ours is replaced, whatever version or settings it is from; chains and
rules of others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.agent.interception.rules import (
    PREFIX,
    Action,
    PacketChain,
    PacketRule,
    PacketTable,
    RuleSet,
)
from mesh_pilot.agent.interception.settings import PortSpan


@attrs.frozen
class TableRules:
    """Our part of one table."""

    chains: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """The rules of each chain, without ``-A CHAIN``."""
    jumps: tuple[tuple[str, str], ...] = ()
    """Rules in the chains of others that lead to ours: the chain, and the rule."""

    def __bool__(self) -> bool:
        return bool(self.chains or self.jumps)


def rendered(rules: RuleSet, family: int) -> dict[PacketTable, TableRules]:
    """Our part of each table as it shall be."""
    found = {}
    for table in PacketTable:
        chains = [chain for chain in rules.chains if chain.table is table]
        jumps = tuple((chain.hook.value, f"-j {chain.name}") for chain in chains if chain.hook is not None)
        found[table] = TableRules({chain.name: tuple(_lines(chain, family)) for chain in chains}, jumps)
    return found


def saved(text: str) -> dict[PacketTable, TableRules]:
    """Our part of each table in the output of ``iptables-save``."""
    chains: dict[PacketTable, dict[str, list[str]]] = {table: {} for table in PacketTable}
    jumps: dict[PacketTable, list[tuple[str, str]]] = {table: [] for table in PacketTable}
    table: PacketTable | None = None
    for line in text.splitlines():
        if line.startswith("*"):
            table = PacketTable(line[1:]) if line[1:] in list(PacketTable) else None
        if table is None:
            continue
        if line.startswith(f":{PREFIX}"):
            chains[table].setdefault(line[1:].split()[0], [])
        elif line.startswith("-A "):
            _, chain, rule = (*line.split(" ", 2), "")[:3]
            if chain.startswith(PREFIX):
                chains[table].setdefault(chain, []).append(rule)
            elif _target(rule).startswith(PREFIX):
                jumps[table].append((chain, rule))
    return {
        table: TableRules({name: tuple(rules) for name, rules in chains[table].items()}, tuple(jumps[table]))
        for table in PacketTable
    }


def transition(current: Mapping[PacketTable, TableRules], wanted: Mapping[PacketTable, TableRules]) -> str:
    """Input of ``iptables-restore --noflush`` that makes ``current`` into ``wanted``; empty if nothing is to do."""
    return "".join(
        f"*{table}\n" + "".join(f"{line}\n" for line in _changes(current[table], wanted[table])) + "COMMIT\n"
        for table in PacketTable
        if current[table] or wanted[table]
    )


def _changes(current: TableRules, wanted: TableRules) -> Iterator[str]:
    for name in {**current.chains, **wanted.chains}:
        yield f":{name} - [0:0]"  # made, or emptied
    for chain, rule in current.jumps:
        yield f"-D {chain} {rule}"
    for name, rules in wanted.chains.items():
        for rule in rules:
            yield f"-A {name} {rule}"
    for chain, rule in wanted.jumps:
        yield f"-A {chain} {rule}"
    for name in current.chains:
        if name not in wanted.chains:
            yield f"-X {name}"


def _target(rule: str) -> str:
    words = rule.split()
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-j", "-g")), "")


def _lines(chain: PacketChain, family: int) -> Iterator[str]:
    for rule in chain.rules:
        if rule.family in (None, family):
            yield " ".join((*_matches(rule), _action(rule)))


_MATCHES: Mapping[str, str] = {
    "source": "-s {value}",
    "destination": "{no}-d {value}",
    "came_by": "-i {value}",
    "leaves_by": "-o {value}",
    "protocol": "-p {value}",
    "source_port": "-m {protocol} --sport {value}",
    "port": "-m {protocol} {no}--dport {value}",
    "uid": "-m owner --uid-owner {value}",
    "gid": "-m owner --gid-owner {value}",
    "not_gids": "-m owner ! --gid-owner {value}",
    "mark": "-m mark {no}--mark {value:#x}",
    "connection_mark": "-m connmark --mark {value:#x}",
    "opens": "-m tcp --tcp-flags FIN,SYN,RST,ACK SYN",
    "states": "-m conntrack --ctstate {value}",
}
_ACTIONS: Mapping[Action, str] = {
    Action.JUMP: "-j {value}",
    Action.REDIRECT: "-j REDIRECT --to-ports {value}",
    Action.TPROXY: "-j TPROXY --on-port {value} --tproxy-mark {mark:#x}/0xffffffff",
    Action.MARK: "-j MARK --set-mark {mark:#x}",
    Action.SAVE_MARK: "-j CONNMARK --save-mark",
    Action.RESTORE_MARK: "-j CONNMARK --restore-mark",
    Action.ZONE: "-j CT --zone {value}",
}


def _matches(rule: PacketRule) -> Iterator[str]:
    for name, value, is_negated in rule.matches():
        match value:
            case PortSpan():
                value = str(value).replace("-", ":")
            case tuple():
                value = ",".join(value)
        yield _MATCHES[name].format(value=value, no="! " if is_negated else "", protocol=rule.protocol)


def _action(rule: PacketRule) -> str:
    return _ACTIONS.get(rule.action, f"-j {rule.action}").format(value=rule.value, mark=rule.set_mark)
