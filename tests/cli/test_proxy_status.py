"""``mesh-pilot proxy-status`` on a page of canned answers: in a pipe, on terminals, as JSON, and on a wrong port."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.inspection.dumps import clusters
from tests.support.command import COMMAND, mesh_pilot, on_terminal

REFUSAL = {
    "at": "2026-11-22T10:00:00+00:00",
    "proxy": "edge-gateway-of-the-shop-1.shop",
    "type": "LDS",
    "resources": ["0.0.0.0_8443"],
    "reason": "Error adding/updating listener(s) 0.0.0.0_8443: cannot bind:\nPermission denied",
    "configs": ["Gateway/shop/edge"],
    "version": "1",
    "nonce": "2",
}
WITHHELD = {"object": "VirtualService/shop/edge", "from": "all proxies of envoy 1.40.0"}
QUARANTINED = {
    **WITHHELD,
    "where": "config/edge.yaml:12",
    "fields": ["spec.http[0].match[0].uri.regex"],
    "since": "2026-11-22T10:00:00+00:00",
    "served": "the last accepted version",
    "proxy": "web-1.shop",
    "type": "RDS",
    "resources": ["9080"],
    "reason": "no argument for\nrepetition operator",
    "proxies": ["web-1.shop"],
    "proxies_in_all": 1,
}
CONNECTED = (datetime.now(UTC) - timedelta(days=30, hours=1, minutes=30)).isoformat()
SYNCED = dict.fromkeys(("CDS", "EDS", "LDS", "RDS"), "SYNCED")


def stream(name: str, status: dict[str, str], **more: Any) -> dict[str, Any]:
    node = {"proxy": name, "proxy_id": f"sidecar~10.1.1.1~{name}~x", "proxy_type": "sidecar", "proxy_version": "1.40.0"}
    rest = {"xds": "sotw", "connected_at": CONNECTED, "status": status, "refused": []}
    return {**node, **rest, **more}


FEW = [stream("web-1.shop", SYNCED), stream("web-2.shop", {**SYNCED, "SDS": "NOT SENT"})]
REFUSING = stream(REFUSAL["proxy"], {**SYNCED, "LDS": "NACK"}, proxy_type="router", refused=[REFUSAL])
SERVED_ANOTHER = [stream(f"web-{number}.shop", SYNCED, withheld=[WITHHELD]) for number in range(1, 6)]


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as page:
        yield page


class Page(ThreadingHTTPServer):
    """An API whose ``/proxies`` are what a test says; one object is quarantined."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answer: Any = FEW
        self.dump: Any = {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        pages = {
            "/api/v1/proxies": self.server.answer,
            "/api/v1/rejections": {"quarantined": [QUARANTINED]},
            "/api/v1/proxies/web-1.shop/config_dump": self.server.dump,
        }
        body = json.dumps(pages[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_in_a_pipe_every_line_has_every_column_in_full(page: Page) -> None:
    page.answer = [*FEW, REFUSING]
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    assert done.code == 1
    table, _, reasons = done.out.partition("\n\n")
    rows = [line.split()[:-1] for line in table.splitlines()]
    assert {line.split()[-1] for line in table.splitlines()} == {"AGE", "30d1h"}
    assert rows == [
        ["NAME", "TYPE", "ENVOY", "XDS", "CDS", "EDS", "LDS", "RDS", "VHDS", "SDS", "ECDS", "WITHHELD", "AGENT"],
        [REFUSAL["proxy"], "router", "1.40.0", "sotw", "SYNCED", "SYNCED", "NACK", "SYNCED", "-", "-", "-", "-", "-"],
        ["web-1.shop", "sidecar", "1.40.0", "sotw", *["SYNCED"] * 4, "-", "-", "-", "-", "-"],
        ["web-2.shop", "sidecar", "1.40.0", "sotw", *["SYNCED"] * 4, "-", "NOT_SENT", "-", "-", "-"],
    ]
    assert reasons.splitlines() == [
        "edge-gateway-of-the-shop-1.shop refuses LDS 0.0.0.0_8443 (made from Gateway/shop/edge):",
        "  Error adding/updating listener(s) 0.0.0.0_8443: cannot bind: Permission denied",
    ]


def test_what_warms_follows_the_table_with_what_it_waits_for(page: Page) -> None:
    warms = {"type": "LDS", "resource": "0.0.0.0_8080", "waits_for": ["SDS partner-cert"], "seconds": 14, "held": ""}
    page.answer = [stream("web-1.shop", {**SYNCED, "LDS": "WARMING"}, warming=[warms]), FEW[1]]
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    assert done.code == 1
    assert done.out.splitlines()[1].split()[4:8] == ["SYNCED", "SYNCED", "WARMING", "SYNCED"]
    assert done.out.partition("\n\n")[2].splitlines() == [
        "web-1.shop has accepted LDS 0.0.0.0_8080 and does not use it:",
        "  it waits for SDS partner-cert, 14 s or more by now",
    ]
    done = mesh_pilot("proxy-status", "web-1", "-o", "json", "--pilot", page.address)
    assert json.loads(done.out)[0]["warming"] == [warms]


def test_internal_errors_are_listed_once_with_the_proxies_that_they_concern(page: Page) -> None:
    failing = {"failure": "CDS outbound|80||a stays at its last good version", "error": "KeyError: 'port'"}
    page.answer = [{**entry, "failing": [failing]} for entry in FEW]
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    assert done.code == 0, "the proxies accept what they are sent"
    assert done.out.partition("\n\n")[2].splitlines() == [
        "internal error: CDS outbound|80||a stays at its last good version: KeyError: 'port'",
        "  at web-1.shop, web-2.shop",
    ]


@pytest.mark.process
def test_on_80_columns_names_and_states_are_whole(page: Page) -> None:
    page.answer = FEW
    assert on_terminal(80, "proxy-status", "--pilot", page.address) == [
        "NAME        TYPE     ENVOY   XDS   CDS     EDS     LDS     RDS     SDS",
        "web-1.shop  sidecar  1.40.0  sotw  SYNCED  SYNCED  SYNCED  SYNCED  -",
        "web-2.shop  sidecar  1.40.0  sotw  SYNCED  SYNCED  SYNCED  SYNCED  NOT SENT",
    ]
    assert on_terminal(90, "proxy-status", "--pilot", page.address)[0].endswith("  SDS       AGE")


@pytest.mark.process
def test_a_terminal_too_narrow_for_the_table_has_two_lines_a_proxy(page: Page) -> None:
    page.answer = [FEW[1], REFUSING]
    assert on_terminal(80, "proxy-status", "--pilot", page.address, NO_COLOR="1")[:4] == [
        f"{REFUSAL['proxy']} router 1.40.0 sotw",
        "  SYNCED CDS EDS RDS, NACK LDS",
        "web-2.shop sidecar 1.40.0 sotw",
        "  SYNCED CDS EDS LDS RDS, NOT SENT SDS",
    ]


@pytest.mark.process
def test_only_a_terminal_that_wants_them_gets_colours(page: Page) -> None:
    page.answer = [REFUSING]
    asked = ("proxy-status", "--pilot", page.address)
    assert "\x1b[31m" in "".join(on_terminal(200, *asked))
    assert "\x1b" not in "".join(on_terminal(200, *asked, NO_COLOR="1"))
    assert "\x1b" not in mesh_pilot(*asked).out


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web-1.shop", ["web-1.shop"]),
        ("web-1", ["web-1.shop"]),
        ("web-*", ["web-1.shop", "web-2.shop"]),
        ("*.shop", [REFUSAL["proxy"], "web-1.shop", "web-2.shop"]),
    ],
)
def test_proxies_are_picked_by_name_and_json_has_its_documented_shape(page: Page, name: str, shown: list[str]) -> None:
    page.answer = [*FEW, REFUSING]
    done = mesh_pilot("proxy-status", name, "-o", "json", "--pilot", page.address)
    found = json.loads(done.out)
    assert [entry["proxy"] for entry in found] == shown
    for entry in found:
        assert list(entry)[:7] == ["proxy", "id", "type", "envoy", "agent", "xds", "connected_at"]
        assert list(entry)[7:] == ["status", "refused", "warming", "withheld", "trial", "failing", "pilot"]
    if shown[0] == REFUSAL["proxy"]:
        wanted = ("type", "at", "resources", "reason", "configs")
        assert found[0]["refused"] == [{key: REFUSAL[key] for key in wanted} | {"held": ""}]
    assert done.code == int(REFUSAL["proxy"] in shown), "only what is shown counts"


def test_a_withheld_object_follows_the_table_once_with_its_line_and_its_stand_in(page: Page) -> None:
    page.answer = SERVED_ANOTHER
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    table, _, told = done.out.partition("\n\n")
    assert [row.split()[-3] for row in table.splitlines()] == ["WITHHELD", "1", "1", "1", "1", "1"]
    assert told.splitlines() == [
        "VirtualService/shop/edge is withheld from web-1.shop, web-2.shop, web-3.shop and 2 more",
        "  config/edge.yaml:12, spec.http[0].match[0].uri.regex; since 2026-11-22T10:00:00+00:00; "
        "served instead: the last accepted version",
        "  web-1.shop refused RDS 9080: no argument for repetition operator",
    ]
    assert done.code == 1


def test_json_has_the_withheld_objects_of_each_proxy(page: Page) -> None:
    page.answer = [SERVED_ANOTHER[0], stream("web-2.shop", SYNCED, trial=["VirtualService/shop/edge"])]
    done = mesh_pilot("proxy-status", "-o", "json", "--pilot", page.address)
    first, second = json.loads(done.out)
    assert first["withheld"] == [{k: v for k, v in QUARANTINED.items() if not k.startswith("proxies")}]
    assert (second["withheld"], second["trial"]) == ([], ["VirtualService/shop/edge"])


def test_an_object_whose_quarantine_ended_meanwhile_is_named_without_details(page: Page) -> None:
    page.answer = [stream("web-1.shop", SYNCED, withheld=[{**WITHHELD, "object": "Gateway/shop/gone"}])]
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    assert done.out.endswith("\n\nGateway/shop/gone is withheld from web-1.shop\n")


@pytest.mark.process
def test_a_narrow_terminal_has_the_number_of_withheld_objects_too(page: Page) -> None:
    page.answer = [SERVED_ANOTHER[0], REFUSING]
    lines = on_terminal(60, "proxy-status", "--pilot", page.address, NO_COLOR="1")
    assert "  SYNCED CDS EDS LDS RDS, withheld: 1" in lines


def test_a_name_that_nobody_has_is_an_error_that_names_those_there_are(page: Page) -> None:
    done = mesh_pilot("proxy-status", "web-3", "--pilot", page.address)
    assert done.code == 1
    assert done.err == "mesh-pilot: no connected proxy is called web-3; connected: web-1.shop, web-2.shop\n"


def test_no_proxy_is_no_error(page: Page) -> None:
    page.answer = []
    assert mesh_pilot("proxy-status", "--pilot", page.address).out == "no proxy is connected\n"
    assert json.loads(mesh_pilot("proxy-status", "-o", "json", "--pilot", page.address).out) == []


def test_another_page_is_one_line_that_says_which_port_is_meant(page: Page) -> None:
    page.answer = {"version": "1"}
    done = mesh_pilot("proxy-status", "--pilot", page.address)
    assert (done.code, done.out) == (1, "")
    hint = "--pilot takes the address of its web page (--http-addr, by default 127.0.0.1:8080)"
    assert done.err == f"mesh-pilot: what answers at {page.address} is not mesh-pilot's API: {hint}\n"


def test_a_port_that_speaks_something_else_is_one_line_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00 the settings of HTTP/2")
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        done = mesh_pilot("proxy-status", "--pilot", address)
        thread.join()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert address in done.err


def test_the_address_may_be_a_url(page: Page) -> None:
    page.answer = []
    assert mesh_pilot("proxy-status", "--pilot", f"http://{page.address}/").out == "no proxy is connected\n"


def test_several_planes_are_one_table_and_a_silent_one_is_named(page: Page) -> None:
    with Page() as other, socket.create_server(("127.0.0.1", 0)) as unused:
        other.answer = [stream("api-1.shop", SYNCED)]
        silent = f"127.0.0.1:{unused.getsockname()[1]}"
        unused.close()
        pilots = ("--pilot", page.address, "--pilot", other.address)
        both = mesh_pilot("proxy-status", *pilots)
        rows = [(line.split()[0], line.split()[-1]) for line in both.out.splitlines()]
        assert rows == [
            ("NAME", "PILOT"),
            ("api-1.shop", other.address),
            ("web-1.shop", page.address),
            ("web-2.shop", page.address),
        ]
        assert both.code == 0
        one_away = mesh_pilot("proxy-status", *pilots, "--pilot", silent, "-o", "json")
        assert (one_away.code, len(json.loads(one_away.out)), one_away.err.count("\n")) == (1, 3, 1)
        assert silent in one_away.err


@pytest.mark.process
@pytest.mark.smoke
def test_watching_prints_it_again_until_it_is_interrupted(page: Page) -> None:
    command = [*COMMAND, "proxy-status", "-w", "--pilot", page.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("NAME")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130


def test_names_that_would_steer_a_terminal_are_escaped(page: Page) -> None:
    page.answer = [stream("web\x1b[2J-1.shop", SYNCED)]
    assert mesh_pilot("proxy-status", "--pilot", page.address).out.splitlines()[1].startswith("web\\x1b[2J-1.shop ")


def test_a_comparison_shows_what_an_envoy_has_not_as_it_was_sent(page: Page, tmp_path: Path) -> None:
    page.dump = {
        "configs": [clusters({"name": "a", "connect_timeout": "10s"}, made_from=("DestinationRule/shop/a",))],
        "origins": {"DestinationRule/shop/a": "config/a.yaml:7"},
    }
    held = tmp_path / "web.json"
    asked = ("proxy-status", "web-1.shop", "--file", str(held), "--pilot", page.address)
    held.write_text(json.dumps({"configs": [clusters({"name": "a", "connect_timeout": "1s"})]}))
    done = mesh_pilot(*asked)
    assert done.code == 1
    assert done.out.splitlines()[:4] == [
        "Clusters Don't Match (1 of 1)",
        "  CDS a differs (made from config/a.yaml:7)",
        "    --- control plane",
        "    +++ Envoy",
    ]
    assert '    - "connect_timeout": "10s",' in done.out.splitlines()
    (found,) = json.loads(mesh_pilot(*asked, "-o", "json").out)["types"]
    assert (found["type"], found["match"], found["differences"][0]["kind"]) == ("CDS", False, "differs")
    held.write_text(json.dumps({"configs": [clusters({"name": "a", "connect_timeout": "10s"})]}))
    same = mesh_pilot(*asked)
    assert (same.code, same.out) == (0, "Clusters Match (1)\n")


def test_a_comparison_without_one_name_is_refused(page: Page) -> None:
    for names in ((), ("web-1.shop", "web-2.shop")):
        done = mesh_pilot("proxy-status", *names, "--diff", "--pilot", page.address)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
