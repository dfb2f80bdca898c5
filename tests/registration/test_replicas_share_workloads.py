"""Registered workloads of several replicas, in a real Consul with ACLs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.consul.source import Agent
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.net.rpc import GRPCError, RpcError, StreamTerminatedError
from mesh_pilot.replicas.registration.registrar import Registrar
from mesh_pilot.replicas.registration.settings import RegistrationSettings
from tests.registration.test_registered_workloads import (
    GROUP,
    PROBE,
    SERVICE,
    WORKLOAD,
    Caller,
    caller_of,
    config,
    entry,
)
from tests.support.agent_streams import ENDPOINTS, ads_stream, node_of
from tests.support.consul import cable, closed_consul, real_consul, token_for
from tests.support.envoy import eventually
from tests.support.plane_process import PlaneProcess
from tests.support.planes import running_plane

pytestmark = pytest.mark.process

RULES = 'key_prefix "mesh-pilot/" { policy = "write" } session_prefix "" { policy = "write" }'

Ports = Callable[[int], list[int]]


def registrar(plane: ControlPlane) -> Registrar:
    (found,) = (s.source for s in plane.state.supervisors if isinstance(s.source, Registrar))
    return found


def replica(address: str, token: str, grace_seconds: float = 30.0) -> dict[str, Any]:
    return {
        "trust_local": True,
        "registration": RegistrationSettings(grace_seconds=grace_seconds),
        "election": ConsulElectionSettings(agent=Agent(address, token=token), ttl_seconds=2.0),
    }


async def is_known(*planes: ControlPlane) -> None:
    async def known() -> bool:
        return all(entry(plane) is not None for plane in planes)

    await eventually(known, what="the entry")


@pytest.mark.smoke
async def test_a_workload_moves_between_replicas_and_callers_of_both_see_no_change(
    tmp_path: Path, free_ports: Ports
) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE)
    with trio.fail_after(60):
        async with closed_consul(tmp_path, free_ports(4), session_ttl_min="1s") as consul:
            own = replica(consul.address, await token_for(consul, "replicas", RULES))
            async with (
                running_plane(folder, **own) as one,
                running_plane(folder, **own) as other,
                caller_of(other) as caller,
            ):
                assert await caller.begin() == []
                for plane in (one, other, one):
                    async with ads_stream(plane.addresses.grpc, node_of(**WORKLOAD)) as workload:
                        await workload.ask(CLUSTER)
                        await workload.report(None)
                        await caller.until("127.0.0.1:8081")
                        me = registrar(plane)

                        async def is_here(at: Registrar = me) -> bool:
                            records = registrar(other).records()
                            return bool(records) and records[0].controller == at._replica and records[0].is_connected

                        await eventually(is_here, what="the record at this replica")
                await is_known(one, other)
                assert registrar(one).statistics().deleted == registrar(other).statistics().deleted == 0
                assert caller.addresses() == ["127.0.0.1:8081"]


async def test_the_entries_of_a_workload_that_left_are_gone_at_all_replicas(tmp_path: Path, free_ports: Ports) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(60):
        async with closed_consul(tmp_path, free_ports(4), session_ttl_min="1s") as consul:
            own = replica(consul.address, await token_for(consul, "replicas", RULES), grace_seconds=0.3)
            async with running_plane(folder, **own) as one, running_plane(folder, **own) as other:
                async with ads_stream(one.addresses.grpc, node_of(**WORKLOAD)) as workload:
                    await workload.ask(CLUSTER)
                    await is_known(one, other)

                async def is_gone() -> bool:
                    return entry(one) is None and entry(other) is None

                await eventually(is_gone, what="the end of the entry")


# httpx leaves the generator of a body open whose request is cut off.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_without_consul_a_replica_registers_its_own_workloads_and_the_others_learn_later(
    tmp_path: Path, free_ports: Ports
) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    ports = free_ports(4)
    with trio.fail_after(90):
        async with (
            closed_consul(tmp_path, ports, session_ttl_min="1s") as consul,
            cable(ports[0]) as wire,
        ):
            token = await token_for(consul, "replicas", RULES)
            async with (
                running_plane(folder, **replica(wire.address, token)) as one,
                running_plane(folder, **replica(consul.address, token)) as other,
                caller_of(one) as caller,
            ):
                assert await caller.begin() == []
                wire.cut()
                async with ads_stream(one.addresses.grpc, node_of(**WORKLOAD)) as workload:
                    await workload.ask(CLUSTER)
                    await caller.until("127.0.0.1:8081")
                    assert entry(other) is None
                    wire.fix()
                    await is_known(other)


async def test_a_token_that_may_not_write_costs_the_sharing_only(tmp_path: Path, free_ports: Ports) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    rules = 'key "mesh-pilot/leader" { policy = "write" } session_prefix "" { policy = "write" }'
    with trio.fail_after(60):
        async with closed_consul(tmp_path, free_ports(4), session_ttl_min="1s") as consul:
            token = await token_for(consul, "replicas", rules)
            async with running_plane(folder, **replica(consul.address, token)) as plane, caller_of(plane) as caller:
                assert await caller.begin() == []
                async with ads_stream(plane.addresses.grpc, node_of(**WORKLOAD)) as workload:
                    await workload.ask(CLUSTER)
                    await caller.until("127.0.0.1:8081")


@pytest.mark.slow
async def test_the_workloads_of_a_killed_leader_stay_for_those_that_come_back_and_end_for_the_others(
    tmp_path: Path, free_ports: Ports
) -> None:
    """Two processes; the next leader cleans up after the first one."""
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(170):
        async with AsyncExitStack() as stack:
            consul = await stack.enter_async_context(
                real_consul(tmp_path, free_ports(4), config={"session_ttl_min": "1s"})
            )
            flags = ("--leader-election=consul", "--leader-election-ttl=2s", f"--consul-server-url={consul.address}")
            planes = []
            for name in ("first", "second"):
                own = PlaneProcess(tmp_path / name, free_ports(3), f"--config-dir={folder}", "--trust-local", *flags)
                stack.push_async_callback(own.kill)
                await own.start()
                planes.append(own)
            first, second = planes
            caller = Caller(
                await stack.enter_async_context(
                    ads_stream(second.grpc, node_of("caller", ip="127.0.0.9"), method=ENDPOINTS)
                )
            )
            assert await caller.begin() == []
            stays, goes = (node_of(f"web-{n}", ip=f"127.0.0.{n}", **WORKLOAD) for n in (1, 2))
            with suppress(GRPCError, StreamTerminatedError, RpcError):
                async with ads_stream(first.grpc, stays) as one, ads_stream(first.grpc, goes) as other:
                    await one.ask(CLUSTER)
                    await other.ask(CLUSTER)
                    await caller.until("127.0.0.1:8081", "127.0.0.2:8081")
                    await first.kill()
                    with pytest.raises((GRPCError, StreamTerminatedError)):
                        await one.ask(CLUSTER)
            workload = await stack.enter_async_context(ads_stream(second.grpc, stays))
            await workload.ask(CLUSTER)
            while (there := caller.addresses()) != ["127.0.0.1:8081"]:
                assert there == ["127.0.0.1:8081", "127.0.0.2:8081"], "the one that came back has never gone"
                await caller.stream.answer()
            await workload.ask(LISTENER)  # it is served on
