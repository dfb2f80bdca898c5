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
    Negated,
    PacketChain,
    PacketRule,
    PacketTable,
    RuleSet,
)


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
            yield " ".join((*_matches(rule), *_action(rule)))


def _not(value: object, flag: str, render: str) -> list[str]:
    return (["!"] if isinstance(value, Negated) else []) + [flag, render]


def _plain(value: object) -> object:
    return value.value if isinstance(value, Negated) else value


def _matches(rule: PacketRule) -> Iterator[str]:
    if rule.source is not None:
        yield from ("-s", str(rule.source))
    if rule.destination is not None:
        yield from _not(rule.destination, "-d", str(_plain(rule.destination)))
    if rule.came_by is not None:
        yield from ("-i", rule.came_by)
    if rule.leaves_by is not None:
        yield from ("-o", rule.leaves_by)
    if rule.protocol is not None:
        yield from ("-p", rule.protocol)
    if rule.source_port is not None:
        yield from ("-m", str(rule.protocol), "--sport", str(rule.source_port).replace("-", ":"))
    if rule.port is not None:
        yield from ("-m", str(rule.protocol))
        yield from _not(rule.port, "--dport", str(_plain(rule.port)).replace("-", ":"))
    if rule.uid is not None:
        yield from ("-m", "owner", "--uid-owner", str(rule.uid))
    if rule.gid is not None:
        yield from ("-m", "owner", "--gid-owner", str(rule.gid))
    for gid in rule.not_gids:
        yield from ("-m", "owner", "!", "--gid-owner", str(gid))
    if rule.mark is not None:
        yield from ("-m", "mark")
        yield from _not(rule.mark, "--mark", f"{_plain(rule.mark):#x}")
    if rule.connection_mark is not None:
        yield from ("-m", "connmark", "--mark", f"{rule.connection_mark:#x}")
    if rule.opens:
        yield from ("-m", "tcp", "--tcp-flags", "FIN,SYN,RST,ACK", "SYN")
    if rule.states:
        yield from ("-m", "conntrack", "--ctstate", ",".join(rule.states))


def _action(rule: PacketRule) -> tuple[str, ...]:
    match rule.action:
        case Action.JUMP:
            return ("-j", str(rule.value))
        case Action.REDIRECT:
            return ("-j", "REDIRECT", "--to-ports", str(rule.value))
        case Action.TPROXY:
            return ("-j", "TPROXY", "--on-port", str(rule.value), "--tproxy-mark", f"{rule.set_mark:#x}/0xffffffff")
        case Action.MARK:
            return ("-j", "MARK", "--set-mark", f"{rule.set_mark:#x}")
        case Action.SAVE_MARK:
            return ("-j", "CONNMARK", "--save-mark")
        case Action.RESTORE_MARK:
            return ("-j", "CONNMARK", "--restore-mark")
        case Action.ZONE:
            return ("-j", "CT", "--zone", str(rule.value))
        case _:
            return ("-j", rule.action.value)
