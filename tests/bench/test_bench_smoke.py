"""The bench on a tiny mesh: what it reports is what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import ApiServer
from tests.support.binaries import require_binary

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SERVICES = 20
CLIENTS = 4
EVENTS = "route,endpoint,service,reconnect,stuck,refusing"


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of several events, as JSON; with the table under ``table`` and the plot under ``svg``."""
    folder = tmp_path_factory.mktemp("bench")
    sizes = ("--services", str(SERVICES), "--clients", str(CLIENTS), "--repeat", "1", "--settle", "0.05")
    table = bench(
        "run",
        *sizes,
        "--events",
        EVENTS,
        "--quiet",
        "--json",
        str(folder / "run.json"),
        "--svg",
        str(folder / "run.svg"),
    )
    told: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return {**told, "table": table, "svg": (folder / "run.svg").read_text()}


def of(results: dict[str, Any], event: str) -> list[dict[str, Any]]:
    """An event's measurements, State of the World first."""
    found = [m for m in results["measurements"] if m["event"] == event]
    assert [m["variant"] for m in found] == ["sotw", "delta"]
    return found


def test_every_client_has_every_change_and_finds_nothing_wrong(results: dict[str, Any]) -> None:
    for m in results["measurements"]:
        assert (m["missing"], m["problems"]) == (0, []), m["event"]
        assert 0 <= m["p50"] <= m["p99"] <= m["last"]


def test_a_run_tells_where_it_took_place_and_what_it_cost(results: dict[str, Any]) -> None:
    assert {"format", "revision", "python", "cores", "load", "load_at_end"} <= results.keys()
    for m in results["measurements"]:
        assert (m["server"], m["mesh"], m["clients"]) == ("mesh-pilot", "20 x 5", CLIENTS)
        assert m["cpu"] > 0
        assert m["memory"] > 10


def test_clients_that_come_are_sent_each_type_once(results: dict[str, Any]) -> None:
    for m in of(results, "connect, cold"):
        assert m["by_type"] == dict.fromkeys(("CDS", "EDS", "LDS", "RDS"), CLIENTS)
        assert m["calls"] > SERVICES
        assert m["needless"] == 0


def test_a_route_edit_is_one_response_to_each_client(results: dict[str, Any]) -> None:
    for m in of(results, "route edit"):
        assert m["by_type"] == {"RDS": CLIENTS}
        assert m["resources"] == CLIENTS
        assert m["last"] > m["publish"] > 0


def test_an_endpoint_change_sends_only_that_assignment(results: dict[str, Any]) -> None:
    for m in of(results, "endpoint change"):
        assert m["by_type"] == {"EDS": CLIENTS}
        assert m["resources"] == CLIENTS
        assert 0 < m["calls"] < 10


def test_delta_clients_that_come_back_with_versions_are_sent_nothing(results: dict[str, Any]) -> None:
    sotw, delta = of(results, "reconnect with versions")
    assert (delta["responses"], delta["bytes"], delta["calls"]) == (0, 0, 0)
    assert sotw["calls"] == 0


def test_changes_reach_the_others_while_a_client_reads_nothing(results: dict[str, Any]) -> None:
    for m in of(results, "endpoint change, one stuck"):
        assert m["responses"] == CLIENTS - 1


def test_the_table_and_the_plot_have_every_event(results: dict[str, Any]) -> None:
    for event in ("connect, cold", "route edit", "endpoint change", "service added", "reconnect with versions"):
        assert event in results["table"]
        assert event in results["svg"]
    assert results["svg"].startswith("<svg ")


@pytest.mark.smoke
def test_generation_is_measured_in_process() -> None:
    assert "endpoints 10 x 10" in bench("generate", "--only", "endpoints 10 x 10")


def test_a_peer_needs_its_process_and_its_folder() -> None:
    command = [sys.executable, "-m", "bench", "run", "--peer", "127.0.0.1:1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--peer-pid" in done.stderr


def test_a_part_that_is_not_known_is_refused_with_those_that_are() -> None:
    command = [sys.executable, "-m", "bench", "clients", "--parts", "endpoint,nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown: nothing; known: endpoint, route, pages, rolling" in " ".join(done.stderr.split())


def test_clients_that_get_virtual_hosts_one_by_one_are_sent_only_the_one_that_changed(
    results: dict[str, Any], tmp_path: Path
) -> None:
    sizes = ("--services", str(SERVICES), "--clients", str(CLIENTS), "--repeat", "1", "--settle", "0.05")
    file = tmp_path / "split.json"
    bench("run", *sizes, "--variant", "split", "--events", "route,service,reconnect", "--quiet", "--json", str(file))
    measured = json.loads(file.read_text())["measurements"]
    assert all((m["missing"], m["problems"]) == (0, []) for m in measured)
    split = {m["event"]: m for m in measured}
    whole = of(results, "route edit")[1]
    assert (split["route edit"]["responses"], split["route edit"]["by_type"]) == (CLIENTS, {"VHDS": CLIENTS})
    assert split["route edit"]["bytes"] < whole["bytes"] / 5
    assert split["service added"]["by_type"] == {"CDS": CLIENTS, "EDS": CLIENTS, "VHDS": CLIENTS}
    assert split["reconnect with versions"]["bytes"] == 0


@pytest.mark.slow
def test_a_stuck_client_is_compared_with_its_absence_edit_by_edit(tmp_path: Path) -> None:
    sizes = ("--services", str(SERVICES), "--clients", str(CLIENTS), "--edits", "3", "--variant", "delta")
    table = bench("stuck", *sizes, "--quiet", "--json", str(tmp_path / "stuck.json"))
    measured = json.loads((tmp_path / "stuck.json").read_text())["measurements"]
    assert [m["event"] for m in measured] == [
        "route edit, none stuck",
        "route edit, one stuck",
        "endpoint edit, none stuck",
        "endpoint edit, one stuck",
    ]
    assert all((m["missing"], m["problems"]) == (0, []) for m in measured)
    assert [m["responses"] for m in measured] == [CLIENTS, CLIENTS - 1] * 2
    assert "3 edits each" in measured[1]["note"]
    assert "against none" in table


@pytest.mark.slow
@pytest.mark.envoy
def test_many_clients_have_every_change_and_a_rolling_restart_fails_no_request(tmp_path: Path) -> None:
    for program in ("go", "envoy"):
        require_binary(program)
    count, file = 50, tmp_path / "clients.json"
    sizes = ("--services", str(SERVICES), "--clients", str(count), "--repeat", "1", "--workers", "2")
    bench("clients", *sizes, "--quiet", "--json", str(file))
    measured = {m["event"]: m for m in json.loads(file.read_text())["measurements"]}
    assert all((m["missing"], m["problems"], m["removed"]) == (0, [], 0) for m in measured.values())
    assert measured["connect, cold"]["by_type"] == dict.fromkeys(("CDS", "EDS", "LDS", "RDS"), count)
    assert measured["endpoint change"]["by_type"] == {"EDS": count}
    assert measured["route edit"]["by_type"] == {"RDS": count}
    restart = measured["restart of the second of two"]
    assert restart["by_type"] == {"EDS": count}, "who comes back with versions is sent only what has changed"
    assert int(restart["note"].rpartition(" ")[2]) > 0


@pytest.mark.slow
def test_pushes_beside_certificate_requests_are_compared_with_those_alone(tmp_path: Path) -> None:
    sizes = ("--services", str(SERVICES), "--clients", str(CLIENTS), "--edits", "3", "--rate", "50")
    bench("signing", *sizes, "--quiet", "--json", str(tmp_path / "signing.json"))
    measured = json.loads((tmp_path / "signing.json").read_text())["measurements"]
    assert [m["event"] for m in measured] == [
        "route edit",
        "route edit next to CSRs",
        "endpoint edit",
        "endpoint edit next to CSRs",
    ]
    assert all((m["missing"], m["problems"]) == (0, []) for m in measured)
    assert "(0 calls failed" in measured[1]["note"] and " 0 certificates" not in measured[1]["note"]


def test_the_cost_of_the_history_is_printed_by_its_parts() -> None:
    arguments = ("--services", "20", "--clients", "3", "--bursts", "2")
    done = subprocess.run(
        [sys.executable, "-m", "bench.history", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["burst", "write", "write", "count", "the"]


def test_reports_of_traffic_are_measured_in_both_forms() -> None:
    sizes = {"proxies": 4, "clusters": 5, "busy": 2, "interval": 1, "seconds": 1, "clients": 2, "edits": 1}
    command = [sys.executable, "-m", "bench.traffic", *(f"--{name}={value}" for name, value in sizes.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == ["relay"] * 3 + ["stock"] * 3
    assert all("reports a second" in line for line in lines[::3])


def test_starts_are_measured_until_they_are_ready() -> None:
    command = [sys.executable, "-m", "bench.start_up", "--repeat", "1", "--starts-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [" ".join(line[6:]) for line in lines] == ["discovery, empty folder, here", "discovery, 10 services, here"]
    assert all(float(line[0]) > 50 and float(line[2]) > 20 and int(line[4]) > 300 for line in lines)


@pytest.mark.slow
def test_a_mesh_in_an_api_server_is_measured_as_one_in_a_folder(apiserver: ApiServer, tmp_path: Path) -> None:
    sizes = ("--services", str(SERVICES), "--clients", str(CLIENTS), "--repeat", "1", "--settle", "0.05")
    source, file = ("--kubeconfig", str(apiserver.kubeconfig())), tmp_path / "run.json"
    events = "route,endpoint,service"
    bench("run", *sizes, *source, "--variant", "delta", "--events", events, "--quiet", "--json", str(file))
    measured = {m["event"]: m for m in json.loads(file.read_text())["measurements"]}
    assert all((m["missing"], m["problems"]) == (0, []) for m in measured.values())
    assert measured["endpoint change"]["by_type"] == {"EDS": CLIENTS}
    assert measured["service removed"]["by_type"]["CDS"] == CLIENTS


def test_envoys_that_are_new_take_every_step(tmp_path: Path) -> None:
    told = tmp_path / "fresh.json"
    bench("fresh", "--services", "5", "--clients", "3", "--repeat", "1", "--quiet", "--json", str(told))
    measured = json.loads(told.read_text())["measurements"]
    assert [m["event"] for m in measured] == ["connect", "certificate", "reconnect", "answer"]
    assert all(m["missing"] == 0 and m["cpu"] > 0 for m in measured)


@pytest.mark.slow
def test_changes_of_services_that_no_client_sees_send_and_compute_nothing(tmp_path: Path) -> None:
    told = tmp_path / "consul.json"
    sizes = ("--services", "20", "--seen", "5", "--max-queries", "18", "--repeat", "2", "--idle", "1")
    bench("consul", *sizes, "--settle", "0.5", "--quiet", "--json", str(told))
    measured = {m["event"]: m for m in json.loads(told.read_text())["measurements"]}
    assert all((m["missing"], m["problems"]) == (0, []) for m in measured.values())
    assert "0 queries a minute" in measured["idle"]["note"]
    for what in ("check fails", "check passes", "instance comes", "instance moves", "instance goes"):
        seen, unseen = (measured[f"{what}, {which}"] for which in ("seen", "unseen"))
        assert seen["responses"] == 1 and seen["calls"] > 0 and seen["last"] > 0, what
        assert (unseen["responses"], unseen["bytes"]) == (0, 0), what
