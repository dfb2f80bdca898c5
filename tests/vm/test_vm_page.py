"""docs/vm.md, typed line by line on five VMs: what it says is what happens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.envoy import eventually
from tests.support.namespaces import ROOT
from tests.support.tutorial import same
from tests.vm.lab import Vm, vms

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "vm.md").read_text(encoding="utf-8")
ADDRESSES = dict(re.findall(r"^\| `(\w+)` \| ([0-9.]+) \|", PAGE, re.MULTILINE))


def lines(page: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Of each command: the VM, the command, and what is seen below it."""
    found: list[tuple[str, str, list[str]]] = []
    for line in re.findall(r"^    (.*)$", page, re.MULTILINE):
        if prompt := re.match(r"(\w+)# (.*)", line):
            found.append((prompt[1], prompt[2], []))
        else:
            found[-1][2].append(line)
    return ((vm, command, tuple(seen)) for vm, command, seen in found)


async def walk(lab: dict[str, Vm], page: str) -> None:
    for name, command, expected in lines(page):
        await typed(lab[name], command, expected)


def of_any_day(text: str) -> str:
    """The text without times and ids."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b[0-9a-f]{16}\b", "...", text)


async def typed(vm: Vm, command: str, expected: tuple[str, ...]) -> None:
    seen = ""

    async def is_so() -> bool:
        nonlocal seen
        seen = await vm.type(command)
        return same(of_any_day(seen), of_any_day("\n".join(expected)).splitlines())

    if not expected:
        seen = await vm.type(command)
        assert not re.sub(r"^\[\d+\].*$", "", seen, flags=re.MULTILINE).strip(), f"{vm.name}# {command}\n{seen}"
        return
    try:
        await eventually(is_so, what=command)
    except Exception:
        logs = "\n".join(f"--- {log}:\n{log.read_text()[-3000:]}" for log in sorted(vm.home.parent.glob("*/*.log")))
        raise AssertionError(f"{vm.name}# {command}\n{seen}\n\n{logs}") from None


async def test_the_page_is_as_it_says() -> None:
    assert len(ADDRESSES) == 5
    assert len(list(lines(PAGE))) > 30
    async with vms(ADDRESSES) as lab:
        await walk(lab, PAGE)
        many = await lab["plane"].type("for i in $(seq 500); do curl -s http://10.77.0.5:8080/; done")
        counts = Counter(many.splitlines())
        assert counts.keys() == {"web: reviews v1", "web: reviews v2"}, counts
        assert 20 <= counts["web: reviews v2"] <= 90, "a tenth of 500, give or take"
        await another_bundle_takes_the_place_of_the_one_before(lab)
        await nothing_gets_around_a_proxy_that_is_away(lab)


async def another_bundle_takes_the_place_of_the_one_before(lab: dict[str, Vm]) -> None:
    plane, v2 = lab["plane"], lab["v2"]
    await plane.type("mesh-pilot token create reviews --bundle v2.join --config reviews-v2.yaml 2> /dev/null")
    await plane.type("scp -q v2.join v2:")
    first, last = (await v2.type("mesh-pilot proxy join v2.join")).splitlines()
    assert first == "replaced /etc/mesh-pilot/token"
    assert last.startswith("this machine is spiffe://cluster.local/ns/default/sa/reviews in the mesh")

    async def is_taken_over() -> bool:
        return "envoy is taken over" in await v2.type("cat proxy.log")

    await eventually(is_taken_over, what="the proxy has read its settings again")
    assert await v2.type("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:15021/healthz/ready") == "200"


async def nothing_gets_around_a_proxy_that_is_away(lab: dict[str, Vm]) -> None:
    """The rules stay until the VM leaves: the application is out of reach rather than open to all."""
    v1, call = lab["v1"], "curl -s -m 5 http://10.77.0.3:9080/ || echo refused"
    assert await v1.type("systemctl stop mesh-pilot-proxy") == ""
    assert not any("envoy" in line for line in v1.processes().values())
    assert await lab["plane"].type(call) == "refused"
    left = await v1.type("mesh-pilot proxy leave")
    assert "rules of nft are removed" in left or "there were no rules to remove" in left, left
    assert await lab["plane"].type(call) == "reviews v1"
    places = "/etc/mesh-pilot /etc/systemd/system/mesh-pilot-* /var/lib/mesh-pilot-proxy /run/mesh-pilot-proxy"
    assert await v1.type(f"find {places} -type f 2> /dev/null") == ""
