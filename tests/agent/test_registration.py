"""The service in a real Consul: registered, renewed, lost and found again, drained, left alone if it is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.registration.definition import check_id, service_definition
from mesh_pilot.agent.registration.registration import ConsulRegistration
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.agent.settings import AgentError, AgentFolders, AgentSettings, ConsulAgentSettings, PlaneSettings
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.service import Locality
from tests.support.consul import Consul, cable, closed_consul, real_consul, token_for
from tests.support.envoy import eventually

HEALTHY = ApplicationHealth(True)
NODE = EnvoyNode(
    "web-1",
    "shop",
    "10.0.0.7",
    labels={"app": "web", "version": "v2", "example.com/team": "a"},
    locality=Locality("eu", "eu-1"),
    metadata={"SERVICE_ACCOUNT": "web"},
)
WEB = {"Name": "web", "Port": 8080, "Meta": {"protocol": "http"}}


def settings_for(consul: ConsulAgentSettings, node: EnvoyNode = NODE) -> AgentSettings:
    folders = AgentFolders(Path("/nonexistent/state"), Path("/nonexistent/run"))
    return AgentSettings(node, folders, PlaneSettings((Pilot("127.0.0.1:1"),)), consul=consul)


@asynccontextmanager
async def registered(
    consul: ConsulAgentSettings, health: Observable[ApplicationHealth | None] | None = None
) -> AsyncIterator[ConsulRegistration]:
    """A registration that runs in the block."""
    registration = ConsulRegistration(settings_for(consul), health or Observable(HEALTHY), Observable(True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.run)
        yield registration
        nursery.cancel_scope.cancel()


async def checks_of(consul: Consul, name: str = "web") -> dict[str, Mapping[str, Any]]:
    """The checks of a service in the catalog, by id."""
    entries = (await consul.ask("GET", f"/v1/health/service/{name}")).json()
    return {check["CheckID"]: check for entry in entries for check in entry["Checks"] if check["ServiceID"]}


async def until(consul: Consul, status: str | None, name: str = "web", id: str = "web") -> Mapping[str, Any]:
    """Our check of a service, once the catalog has it in a status; None: once there is none."""
    found: dict[str, Mapping[str, Any]] = {}

    async def there() -> bool:
        found.clear()
        found.update(await checks_of(consul, name))
        return found.get(check_id(id), {}).get("Status") == status

    await eventually(there, what=f"the check of {name} is {status}")
    return found.get(check_id(id), {})


def test_the_definition_says_what_the_mesh_needs_to_know() -> None:
    found = service_definition(WEB, NODE)
    assert found["ID"] == "web"
    assert found["Address"] == "10.0.0.7"
    assert found["Meta"] == {
        "protocol": "http",
        "namespace": "shop",
        "service_account": "web",
        "region": "eu",
        "zone": "eu-1",
        "tls_mode": "istio",
        "app": "web",
        "version": "v2",
    }
    assert found["Tags"] == ["example.com/team=a"]


def test_the_users_words_win_and_consuls_file_form_is_read() -> None:
    written = {"service": {"name": "web", "id": "web-9", "port": 1, "meta": {"namespace": "b", "tls_mode": "disabled"}}}
    found = service_definition(written, NODE)
    assert (found["Name"], found["ID"]) == ("web", "web-9")
    assert found["Meta"]["namespace"] == "b"
    assert found["Meta"]["tls_mode"] == "disabled"
    assert service_definition({**WEB, "Check": {"TTL": "1m"}, "Checks": []}, NODE)["Checks"] == [{"TTL": "1m"}]


def test_a_router_takes_no_mutual_tls_by_itself_and_a_label_never_poses_as_a_setting() -> None:
    node = EnvoyNode("edge", labels={"protocol": "tcp", "network": "n"}, type=NodeType.ROUTER)
    assert service_definition({"Name": "edge", "Port": 80}, node)["Meta"] == {"namespace": "default"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"Port": 1}, "has no Name"),
        ({"Name": "web"}, "the Port of the Consul service web is 0"),
        ({"Name": "web", "Port": True}, "is True"),
        ({"Name": "web", "Port": 1, "Mata": {}}, "has no field 'Mata'; did you mean Meta"),
        ({"Name": "web", "Port": 1, "Tags": "a"}, "Tags of the Consul service web must be a list"),
    ],
)
def test_a_definition_that_is_none_is_refused_in_one_line(written: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        service_definition(written, NODE)


@pytest.mark.smoke
@pytest.mark.process
async def test_the_service_is_registered_follows_the_application_and_goes_with_a_drain(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        health: Observable[ApplicationHealth | None] = Observable(None)
        async with registered(ConsulAgentSettings(consul.address, service=WEB), health) as registration:
            await until(consul, "critical")
            await eventually(lambda: registration.statistics().updates_total > 0, what="an update")
            # Consul passes a new reason of the same state on to the catalog after some minutes only.
            [check] = [c for c in (await consul.ask("GET", "/v1/agent/checks")).json().values() if c["ServiceID"]]
            assert check["Output"] == "no probe has decided yet"
            health.set(HEALTHY)
            await until(consul, "passing")
            [entry] = (await consul.ask("GET", "/v1/health/service/web")).json()
            assert entry["Service"]["Meta"]["service_account"] == "web"
            health.set(ApplicationHealth(False, "HTTP GET / on port 8080: status 503"))
            assert (await until(consul, "critical"))["Output"] == "HTTP GET / on port 8080: status 503"
            health.set(HEALTHY)
            await until(consul, "passing")
            await registration.drain()
            assert (await until(consul, "critical"))["Output"] == "draining: the agent is about to stop"
            health.set(ApplicationHealth(False, "another"))
            health.set(HEALTHY)
            assert registration.statistics().status == "critical"
            await registration.deregister()
            await until(consul, None)


@pytest.mark.process
async def test_what_consul_lost_or_somebody_changed_is_registered_again(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        async with registered(ConsulAgentSettings(consul.address, service=WEB)) as registration:
            await until(consul, "passing")
            await consul.deregister("web")
            await until(consul, None)
            await until(consul, "passing")
            assert registration.statistics().registrations_total == 2
        # An agent that starts again leaves alone what is there, and fixes what is not as it says.
        async with registered(ConsulAgentSettings(consul.address, service=WEB)) as registration:
            await eventually(lambda: registration.statistics().updates_total > 0, what="an update")
            assert registration.statistics().registrations_total == 0
        async with registered(ConsulAgentSettings(consul.address, service={**WEB, "Port": 9090})) as registration:

            async def mended() -> bool:  # the agent of Consul tells the catalog a little later
                [entry] = (await consul.ask("GET", "/v1/health/service/web")).json()
                return bool(entry["Service"]["Port"] == 9090)

            await eventually(mended, what="the port is as the definition says")
            assert registration.statistics().registrations_total == 1


@pytest.mark.process
async def test_a_changed_check_of_the_users_gets_to_consul_and_no_check_loses_its_state(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        for ttl in ("1m", "2m"):
            check = {"CheckID": "own", "Name": "own", "TTL": ttl}
            async with registered(ConsulAgentSettings(consul.address, service={**WEB, "Checks": [check]})) as ours:
                await eventually(lambda: ours.statistics().updates_total > 0, what="an update")
                assert ours.statistics().registrations_total == 1
                if ttl == "1m":
                    await consul.ask("PUT", "/v1/agent/check/pass/own")
                found = (await consul.ask("GET", "/v1/agent/checks")).json()
                assert {check["Status"] for check in found.values()} == {"passing"}


@pytest.mark.process
async def test_an_agent_that_died_leaves_the_service_which_turns_critical_and_a_new_one_takes_over_where_it_was(
    tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.agent.registration.definition.TTL_SECONDS", 1.0)
    async with real_consul(tmp_path, free_ports(4)) as consul:
        settings = ConsulAgentSettings(consul.address, service=WEB)
        async with registered(settings):
            await until(consul, "passing")
        async with registered(settings, Observable(None)) as registration:  # within the TTL: it stays passing
            await eventually(lambda: registration.statistics().updates_total > 0, what="an update")
            assert registration.statistics().status == "passing"
        await until(consul, "critical")
        async with registered(settings, Observable(None)) as registration:
            await eventually(lambda: registration.statistics().updates_total > 0, what="an update")
            assert registration.statistics().status == "critical"


@pytest.mark.process
async def test_a_service_of_somebody_else_gets_a_check_and_is_never_removed(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        with structlog.testing.capture_logs() as logs:
            async with registered(ConsulAgentSettings(consul.address, service_id="web-7")) as registration:
                await eventually(lambda: registration.statistics().failures_total > 0, what="a failure")
                assert "no service web-7 is registered" in registration.statistics().problem
                await consul.register("web", id="web-7", meta={"team": "a"})
                await until(consul, "passing", id="web-7")
                await registration.drain()
                await registration.deregister()
                await until(consul, "critical", id="web-7")
        [entry] = (await consul.ask("GET", "/v1/health/service/web")).json()
        assert entry["Service"]["Meta"] == {"team": "a"}
        assert sum(line["event"] == "consul registration failed" for line in logs) == 1


@pytest.mark.process
async def test_a_token_without_rights_or_that_ended_is_one_line_each_and_a_better_one_is_read(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    token = tmp_path / "token"
    async with closed_consul(tmp_path, free_ports(4)) as consul:
        token.write_text(await token_for(consul, "other", 'service "other" { policy = "write" }'))
        settings = ConsulAgentSettings(consul.address, token, WEB)
        with structlog.testing.capture_logs() as logs:
            async with registered(settings) as registration:
                await eventually(lambda: registration.statistics().failures_total > 1, what="two failures")
                assert f"the token in {token} needs service:write" in registration.statistics().problem
                token.write_text("00000000-1111-2222-3333-444444444444")
                await eventually(lambda: "ended" in registration.statistics().problem, what="an unknown token")
                token.write_text(await token_for(consul, "web", 'service "web" { policy = "write" }'))
                await until(consul, "passing")
        assert sum(line["event"] == "consul registration failed" for line in logs) == 2


async def test_a_consul_agent_that_hangs_is_a_line_too(autojump_clock: trio.testing.MockClock) -> None:
    (hanging,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = "{}:{}".format(*hanging.socket.getsockname())
    registration = ConsulRegistration(
        settings_for(ConsulAgentSettings(address, service=WEB)), Observable(HEALTHY), Observable(True)
    )
    with structlog.testing.capture_logs() as logs:
        await registration.deregister()
    (line,) = logs
    assert line["event"] == "consul service not deregistered"
    assert "does not answer within 5 s" in line["reason"]
    await hanging.aclose()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx leaves half-read bodies of PUTs
async def test_a_consul_agent_that_is_away_is_one_line_and_delays_no_drain_for_long(
    tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.agent.registration.registration.DRAIN_SECONDS", 0.3)
    async with real_consul(tmp_path, free_ports(4)) as consul, cable(consul.port) as line:
        with structlog.testing.capture_logs() as logs:
            async with registered(ConsulAgentSettings(line.address, service=WEB)) as registration:
                await until(consul, "passing")
                line.cut()
                await eventually(lambda: registration.statistics().failures_total > 1, what="two failures")
                line.fix()
                await eventually(lambda: not registration.statistics().problem, what="Consul is back")
                line.cut()
                await registration.drain()
                await registration.deregister()
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
            "consul registration failed",
            "consul registration failed",
            "consul not told of the drain",
            "consul service not deregistered",
        ]
