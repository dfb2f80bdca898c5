"""Failures of nft, iptables and ip: one line, with what to do."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mesh_pilot.agent.interception.settings import InterceptionError
from mesh_pilot.agent.interception.tools import needed, run

pytestmark = pytest.mark.process

SAID = [
    ("Operation not permitted (you must be root)", "needs CAP_NET_ADMIN"),
    ("iptables v1.8.7 (nf_tables): Could not fetch rule set generation id: Permission denied", "needs CAP_NET_ADMIN"),
    (
        "/dev/stdin:7:5-20: Error: Could not process rule: No such file or directory\n tproxy to :1",
        "modprobe -a nf_tables",
    ),
    ("iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'", "iptable_nat"),
    ("iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist", "modprobe -a nf_tables"),
    ("Warning: Extension CT revision 0 not supported, missing kernel module?", "modprobe -a xt_owner"),
    ("iptables: No chain/target/match by that name.", "modprobe -a xt_owner"),
    ("# Table `nat' is incompatible, use 'nft' tool.\nx: `nat' is incompatible, use 'nft' tool.", "use --backend nft"),
    ("Another app is currently holding the xtables lock; still -9s 0us time ahead", "try again"),
    ('iptables-restore: unknown option "--wait"', "too old"),
]


@pytest.mark.parametrize(("said", "advice"), SAID)
def test_a_failure_says_what_to_do(said: str, advice: str, tmp_path: Path) -> None:
    tool = tmp_path / "some-tool"
    (tmp_path / "said").write_text(said, encoding="utf-8")
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n", encoding="utf-8")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InterceptionError) as caught:
        run([str(tool)])
    text = str(caught.value)
    assert text.startswith("some-tool: ") and advice in text and "\n" not in text


def test_a_tool_that_says_nothing_or_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(InterceptionError, match=r"^false: exit code 1$"):
        run([needed("false", "coreutils")])
    with pytest.raises(InterceptionError, match="does not start: No such file"):
        run([str(tmp_path / "gone")])
    with pytest.raises(InterceptionError, match="there is no such-tool on this machine: install the package such"):
        needed("such-tool", "such")
