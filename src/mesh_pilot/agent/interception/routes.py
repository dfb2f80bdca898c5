"""The routing and the address without which rules do not work.

With TPROXY, packets with its mark are for this machine, whatever their address is. Over IPv6, Envoy connects to the
application from an address that a machine does not have by default; 127.0.0.6, of IPv4, is one of loopback everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import attrs

from mesh_pilot.agent.interception.rules import PASSTHROUGH, RuleSet
from mesh_pilot.agent.interception.tools import find, needed, run

PREFERENCE = 15006
"""The preference of our routing rules, by which we recognize them."""
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


@attrs.frozen
class SourceAddress:
    """The address of ``PASSTHROUGH`` from which Envoy connects to the application over IPv6."""

    words: ClassVar[tuple[str, ...]] = (str(PASSTHROUGH[6]), "dev", "lo")

    def added_by(self) -> list[list[str]]:
        return [["ip", "-6", "address", "replace", *self.words]]

    def removed_by(self) -> list[list[str]]:
        return [["ip", "-6", "address", "del", *self.words]]


Need = MarkRoute | SourceAddress


def wanted(rules: RuleSet) -> list[Need]:
    """The needs of these rules."""
    families = rules.families if rules.mark else ()
    routes = [MarkRoute(family, rules.mark, str(rules.route_table)) for family in families]
    return [*routes, *([SourceAddress()] if 6 in rules.families else ())]


def current() -> list[Need]:
    """The needs that are met. Raises InterceptionError."""
    ip = find("ip")
    if ip is None:
        return []
    found: list[Need] = []
    if Path("/proc/net/if_inet6").exists() and f"inet6 {PASSTHROUGH[6]} " in run([ip, "-6", "address", "show", "lo"]):
        found.append(SourceAddress())
    for family in (4, 6) if Path("/proc/net/if_inet6").exists() else (4,):
        shown = run([ip, f"-{family}", "rule", "show"])
        pattern = rf"^{PREFERENCE}:\s+from all fwmark (\S+) lookup (\S+)"
        found += [
            MarkRoute(family, int(mark, 0), table) for mark, table in re.findall(pattern, shown, flags=re.MULTILINE)
        ]
    return found


def replace(needs: Iterable[Need]) -> None:
    """Make these the only ones of ours; those that are there already stay. Raises InterceptionError."""
    needs, before = list(needs), current()
    for need in before:
        if need not in needs:
            _run(need.removed_by())
    for need in needs:
        if need not in before:
            _run(need.added_by())


def _run(commands: Iterable[list[str]]) -> None:
    for command in commands:
        run([needed("ip", "iproute2"), *command[1:]])
