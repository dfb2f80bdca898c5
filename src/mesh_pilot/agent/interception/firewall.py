"""The rules in force on this machine: applied as a whole or not at all, and removed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from mesh_pilot.agent.interception import iptables, nftables, routes
from mesh_pilot.agent.interception.rules import PacketTable, RuleSet
from mesh_pilot.agent.interception.settings import InterceptionError
from mesh_pilot.agent.interception.tools import check_rights, find, needed, run

_NOTHING: Mapping[PacketTable, iptables.TableRules] = {table: iptables.TableRules() for table in PacketTable}


class FirewallTool(StrEnum):
    """The tool by which rules are applied."""

    AUTO = "auto"
    """The one whose rules are in force; else nft if the kernel takes our rules from it, else iptables."""
    NFT = "nft"
    IPTABLES = "iptables"


class NftFirewall:
    """One table for both families: nft's transactions do the rest."""

    name = "nft"

    def text(self, rules: RuleSet) -> str:
        """The input of the tool, for people."""
        return nftables.rendered(rules)

    def check(self, rules: RuleSet) -> None:
        """Raise InterceptionError if the tool or the kernel would refuse them; nothing is changed."""
        run([needed("nft", "nftables"), "--check", "-f", "-"], self.text(rules))

    def is_applied(self) -> bool:
        """True if rules of ours are in force."""
        tables = run([needed("nft", "nftables"), "list", "tables"])
        return f"table {nftables.TABLE}" in tables.splitlines()

    def apply(self, rules: RuleSet) -> None:
        """Replace ours; after an InterceptionError what was in force before is."""
        run([needed("nft", "nftables"), "-f", "-"], self.text(rules))

    def clean(self) -> bool:
        """Remove ours; whether there were any."""
        if not self.is_applied():
            return False
        run([needed("nft", "nftables"), "-f", "-"], nftables.REMOVE)
        return True


class IptablesFirewall:
    """iptables and ip6tables, each table in one step; a failure takes back the steps before."""

    def __init__(self, variant: str = "") -> None:
        """``variant``: ``-nft`` or ``-legacy``; empty: the one that the machine's administrator has chosen."""
        self.name = f"iptables{variant}"
        self._variant = variant

    def text(self, rules: RuleSet) -> str:
        parts = []
        for family in rules.families:
            command = f"{self._command(family)}-restore --noflush"
            parts.append(f"# {command}\n{iptables.transition(_NOTHING, iptables.rendered(rules, family))}")
        return "".join(parts)

    def check(self, rules: RuleSet) -> None:
        for family in rules.families:
            wanted = iptables.rendered(rules, family)
            self._restore(family, iptables.transition(self._current(family), wanted), "--test")

    def is_applied(self) -> bool:
        return any(any(self._current(family).values()) for family in self._families())

    def apply(self, rules: RuleSet) -> None:
        self.check(rules)
        self._replace(
            {
                family: iptables.rendered(rules, family) if family in rules.families else _NOTHING
                for family in self._families()
            }
        )

    def clean(self) -> bool:
        if not self.is_applied():
            return False
        self._replace(dict.fromkeys(self._families(), _NOTHING))
        return True

    def _replace(self, wanted: Mapping[int, Mapping[PacketTable, iptables.TableRules]]) -> None:
        before = {family: self._current(family) for family in wanted}
        try:
            for family, tables in wanted.items():
                self._restore(family, iptables.transition(before[family], tables))
        except InterceptionError:
            for family, tables in before.items():
                self._restore(family, iptables.transition(self._current(family), tables))
            raise

    def _command(self, family: int) -> str:
        return ("iptables" if family == 4 else "ip6tables") + self._variant

    def _families(self) -> Sequence[int]:
        """The families whose tools are there."""
        return [family for family in (4, 6) if find(f"{self._command(family)}-restore")]

    def _current(self, family: int) -> Mapping[PacketTable, iptables.TableRules]:
        return iptables.saved(run([needed(f"{self._command(family)}-save", "iptables")]))

    def _restore(self, family: int, text: str, *flags: str) -> None:
        if text:
            command = needed(f"{self._command(family)}-restore", "iptables")
            run([command, "--noflush", "--wait", "10", *flags], text)


Firewall: TypeAlias = NftFirewall | IptablesFirewall


def choose(tool: FirewallTool, rules: RuleSet, *, note: Callable[[str], None]) -> Firewall:
    """The tool for these rules, checked. Raises InterceptionError."""
    if tool is not FirewallTool.AUTO:
        found: Firewall = NftFirewall() if tool is FirewallTool.NFT else IptablesFirewall()
        found.check(rules)
        return found
    refusals = []
    for firewall in sorted(_installed(), key=lambda one: not _holds(one)):
        try:
            firewall.check(rules)
        except InterceptionError as error:
            refusals.append(str(error))
            continue
        for refusal in refusals:
            note(f"{firewall.name} is used: {refusal}")
        return firewall
    raise InterceptionError(
        "; ".join(refusals) or "neither nft nor iptables-restore is on this machine: install the package nftables"
    )


def _installed() -> list[Firewall]:
    found: list[Firewall] = [NftFirewall()] if find("nft") else []
    return [*found, IptablesFirewall()] if find("iptables-restore") else found


def _everywhere() -> list[Firewall]:
    """All places where rules of ours may be: also in the variant of iptables that ``iptables`` is not."""
    found = _installed()
    if command := find("iptables"):
        # Without this file the legacy variant has no rules; asking it would load its modules.
        has_legacy = Path("/proc/net/ip_tables_names").exists()
        other = ("-legacy" if has_legacy else "") if "nf_tables" in run([command, "--version"]) else "-nft"
        if other and find(f"iptables{other}-restore"):
            found.append(IptablesFirewall(other))
    return found


def _holds(firewall: Firewall) -> bool:
    """True if our rules are in force there; none are where the kernel does not know the tool."""
    try:
        return firewall.is_applied()
    except InterceptionError:
        return False


def apply(tool: FirewallTool, rules: RuleSet, *, note: Callable[[str], None]) -> Firewall:
    """Put the rules in force in place of those before, by whatever tool these were applied; the tool that was used.

    After an InterceptionError what was in force before is.
    """
    check_rights()
    firewall = choose(tool, rules, note=note)
    before = routes.current()
    try:
        routes.replace(routes.wanted(rules))
        firewall.apply(rules)
    except InterceptionError:
        routes.replace(before)
        raise
    for other in _everywhere():
        if other.name != firewall.name and _holds(other):
            other.clean()
            note(f"the rules before, of {other.name}, are removed")
    return firewall


def clean(*, note: Callable[[str], None]) -> bool:
    """Remove all that is ours; whether there was anything. Raises InterceptionError."""
    check_rights()
    removed = bool(routes.current())
    for firewall in _everywhere():
        if _holds(firewall) and firewall.clean():
            note(f"rules of {firewall.name} are removed; connections through Envoy end with them")
            removed = True
    routes.replace(())
    return removed


def shown(tool: FirewallTool, rules: RuleSet) -> str:
    """The text of all that ``apply`` would do; needs no rights."""
    if tool is FirewallTool.AUTO:
        tool = FirewallTool.IPTABLES if find("iptables-restore") and not find("nft") else FirewallTool.NFT
    text = (NftFirewall() if tool is FirewallTool.NFT else IptablesFirewall()).text(rules)
    commands = [" ".join(command) for route in routes.wanted(rules) for command in route.added_by()]
    return text + "".join(f"# {command}\n" for command in commands)
