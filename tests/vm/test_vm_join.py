"""Joining without systemd: as root with the redirection, and as an ordinary user; again, and undone."""

from __future__ import annotations

import shlex

import pytest

from tests.support.envoy import eventually
from tests.vm.lab import Vm, vms

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

ADDRESSES = {"plane": "10.77.0.1", "web": "10.77.0.2"}
READY = "curl -s -m 2 -o /dev/null -w '%{http_code}' http://127.0.0.1:15021/healthz/ready"
CALL = "curl -s -m 5 http://10.77.0.2:9080/ || echo refused"
JOIN = "mesh-pilot proxy join web.join --foreground"


async def until(vm: Vm, command: str, seen: str) -> None:
    async def is_so() -> bool:
        return await vm.type(command) == seen

    try:
        await eventually(is_so, what=command)
    except Exception:
        await vm.type("true")  # the command that was given up may print its rest
        raise AssertionError(f"{vm.name}# {command}\n{await vm.type('cat *.log')}") from None


async def bundle(lab: dict[str, Vm], *flags: str) -> None:
    made = await lab["plane"].type(f"mesh-pilot token create web --bundle web.join {shlex.join(flags)} 2> /dev/null")
    assert made == "wrote web.join, for spiffe://cluster.local/ns/default/sa/web at the control plane 10.77.0.1:15012"
    await lab["plane"].type("scp -q web.join web:")


async def users(vm: Vm) -> set[str]:
    """Whose the agent and Envoy are."""
    return {await vm.type(f"ps -o user= -p {pid}") for pid, line in vm.processes().items() if " proxy sidecar " in line}


async def test_a_machine_joins_in_the_foreground_and_leaves() -> None:
    async with vms(ADDRESSES) as lab:
        plane, web = lab["plane"], lab["web"]
        await plane.type("mkdir config && cp mesh/strict.yaml config/")
        secure = "--secure-grpc-addr 10.77.0.1:15012"
        await plane.type(f"mesh-pilot discovery --config-dir config {secure} > mesh-pilot.log 2>&1 &")
        await until(plane, "curl -s http://127.0.0.1:8080/ready", "ready")
        await plane.type("python3 app.py plane > app.log 2>&1 &")
        await web.type("setpriv --reuid nobody --clear-groups python3 app.py web > app.log 2>&1 &")
        await until(plane, CALL, "web")

        await bundle(lab, "--single-use")
        await joined_by_an_ordinary_user(lab)

        refused = await web.type(f"{JOIN}; echo $?")
        assert "the control plane refuses: 10.77.0.1:15012 signs nothing: the join token " in refused
        assert "was already used 1 of 1 times" in refused and refused.endswith("\n1")
        assert "nft" not in await web.type("mesh-pilot iptables clean")

        await bundle(lab)
        await plane.type("exec 3<>/dev/tcp/10.77.0.2/9080")  # open before the redirection
        await web.type(f"{JOIN} > proxy.log 2>&1 & proxy=$!")
        await until(web, READY, "200")
        assert await users(web) == {"istio-proxy"}
        assert await plane.type(CALL) == "refused", "a new connection meets Envoy, which wants a certificate"
        await plane.type(r"printf 'GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n' >&3")
        assert "HTTP/1.1 200 OK" in await plane.type("cat <&3; exec 3<&-")
        assert await web.type("setpriv --reuid nobody --clear-groups curl -s http://10.77.0.1:9080/") == "plane"
        counted = (
            "curl -s http://127.0.0.1:15000/clusters | grep -c '^PassthroughCluster::10.77.0.1:9080::cx_total::1$'"
        )
        assert await web.type(counted) == "1", "by way of Envoy"

        await web.type("echo 'locality: eu/a # mine' >> /etc/mesh-pilot/proxy.yaml; kill $proxy; wait $proxy")
        await bundle(lab)
        await web.type(f"{JOIN} > proxy.log 2>&1 & proxy=$!")
        await until(web, READY, "200")
        assert await web.type("grep replaced proxy.log") == "replaced /etc/mesh-pilot/token"
        assert "locality: eu/a # mine" in await web.type("cat /etc/mesh-pilot/proxy.yaml")
        await web.type("kill $proxy; wait $proxy")
        await web.type("mesh-pilot proxy leave")
        assert await plane.type(CALL) == "web"
        assert await web.type("find /etc/mesh-pilot /var/lib/mesh-pilot-proxy -type f 2> /dev/null") == ""


async def joined_by_an_ordinary_user(lab: dict[str, Vm]) -> None:
    web = lab["web"]
    await web.type("install -d -o nobody home && install -m 600 -o nobody web.join home/")
    as_nobody = "cd home && runuser -u nobody -- env HOME=$PWD"
    assert "with --no-redirect" in await web.type(f"({as_nobody} {JOIN})")
    await web.type(f"({as_nobody} sh -c 'exec {JOIN} --no-redirect' > ../proxy.log 2>&1) & proxy=$!")
    await until(web, READY, "200")
    assert await users(web) == {"nobody"}
    assert await lab["plane"].type(CALL) == "web", "nothing is redirected"
    assert "identity=spiffe://cluster.local/ns/default/sa/web" in await web.type("cat proxy.log")
    for pid, line in web.processes().items():
        if " proxy sidecar " in line and "/python" in line.split()[0]:
            await web.type(f"kill {pid}")
    await web.type("wait $proxy")
    left = await web.type(f"({as_nobody} mesh-pilot proxy leave)")
    assert left.count("removed ") == 5, left  # settings, roots, token, state, and what is lost at a reboot
