"""The routing that TPROXY needs: packets with its mark are for this machine, whatever their address is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from mesh_pilot.agent.interception.rules import RuleSet
from mesh_pilot.agent.interception.tools import find, needed, run

PREFERENCE = 15006
"""Of our routing rules, by which they are known again."""
_ANY = {4: "0.0.0.0/0", 6: "::/0"}


@attrs.frozen
class MarkRoute:
    """The routing of one family: a mark, and the routing table in which everything is local."""

    family: int
    mark: int
    table: str

    @property
    def _rule(self) -> list[str]:
        return ["pref", str(PREFERENCE), "fwmark", f"{self.mark:#x}", "lookup", self.table]

    @property
    def _route(self) -> list[str]:
        return ["local", _ANY[self.family], "dev", "lo", "table", self.table]

    def added_by(self) -> list[list[str]]:
        """The commands that make it."""
        ip = ["ip", f"-{self.family}"]
        return [[*ip, "route", "replace", *self._route], [*ip, "rule", "add", *self._rule]]

    def removed_by(self) -> list[list[str]]:
        ip = ["ip", f"-{self.family}"]
        return [[*ip, "rule", "del", *self._rule], [*ip, "route", "flush", *self._route[2:]]]


def wanted(rules: RuleSet) -> list[MarkRoute]:
    """The routing for these rules."""
    families = rules.families if rules.mark else ()
    return [MarkRoute(family, rules.mark, str(rules.route_table)) for family in families]


def current() -> list[MarkRoute]:
    """The routing of ours in force. Raises InterceptionError."""
    ip = find("ip")
    if ip is None:
        return []
    found = []
    for family in (4, 6) if Path("/proc/net/if_inet6").exists() else (4,):
        shown = run([ip, f"-{family}", "rule", "show"])
        pattern = rf"^{PREFERENCE}:\s+from all fwmark (\S+) lookup (\S+)"
        found += [
            MarkRoute(family, int(mark, 0), table) for mark, table in re.findall(pattern, shown, flags=re.MULTILINE)
        ]
    return found


def replace(routes: Iterable[MarkRoute]) -> None:
    """Make these the only ones of ours; those that are there already stay. Raises InterceptionError."""
    routes, before = list(routes), current()
    for route in before:
        if route not in routes:
            _run(route.removed_by())
    for route in routes:
        if route not in before:
            _run(route.added_by())


def _run(commands: Iterable[list[str]]) -> None:
    for command in commands:
        run([needed("ip", "iproute2"), *command[1:]])
