"""``mesh-pilot proxy-config`` on files, and on canned answers of a control plane and of an Envoy's admin interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
import yaml
from click.testing import CliRunner

from mesh_pilot.cli import cli
from tests.inspection.dumps import assignment, clusters, endpoints, listeners, routes, secrets, section, socket

KEY = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t"
CLUSTER = {"name": "outbound|9080||reviews.test", "type": "EDS"}
DUMP = {
    "configs": [
        section("Bootstrap", bootstrap={"node": {"id": "web"}, "admin": {"x": {"private_key": {"inline_bytes": KEY}}}}),
        clusters(CLUSTER, {"name": "outbound|80||\x1b[2J.test"}),
        endpoints(assignment(CLUSTER["name"], "10.0.0.1:80")),
        listeners({"name": "l", "address": socket("0.0.0.0:80")}),
        routes(
            {"name": "80", "virtual_hosts": [{"name": "a", "domains": ["a"], "routes": [{"match": {"path": "/x"}}]}]}
        ),
        secrets({"name": "edge", "tls_certificate": {"private_key": {"inline_bytes": KEY}}}),
    ]
}
STATUSES = {
    "cluster_statuses": [
        {
            "name": CLUSTER["name"],
            "host_statuses": [{"address": socket("10.0.0.1:80"), "health_status": {"failed_outlier_check": True}}],
        }
    ]
}
PLANE = {
    "configs": [clusters(CLUSTER, made_from=("ServiceEntry/shop/reviews",))],
    "origins": {"ServiceEntry/shop/reviews": "config/reviews.yaml:3"},
}


@attrs.frozen
class Ran:
    """A command that ended."""

    exit_code: int
    output: str


def run(*words: str, stdin: str = "") -> Ran:
    """Run a command in this process, as ``mesh_pilot.cli.main`` does."""
    result = CliRunner().invoke(cli, ["proxy-config", *words], input=stdin, standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        return Ran(result.exception.exit_code, result.exception.format_message())
    assert result.exception is None, result.exception
    return Ran(result.return_value or 0, result.output)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "web.json"
    path.write_text(json.dumps(DUMP))
    return str(path)


class Answers(ThreadingHTTPServer):
    """A control plane and an Envoy at once: answers by path, and the requests that changed something."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.levels = {"http": "warning", "router": "warning"}
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        pages: dict[str, Any] = {
            "/config_dump?include_eds": DUMP,
            "/clusters?format=json": STATUSES,
            "/server_info": {"node": {"id": "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local"}},
            "/api/v1/proxies/web-1.shop/config_dump": PLANE,
        }
        self._answer(
            json.dumps(pages[self.path]) if self.path in pages else "nothing", 200 if self.path in pages else 404
        )

    def do_POST(self) -> None:
        name, _, level = self.path.partition("?")[2].partition("=")
        self.server.asked.append(self.path)
        for each in self.server.levels if name == "level" else [name] if name else []:
            self.server.levels[each] = level
        lines = "".join(f"  {each}: {level}\n" for each, level in self.server.levels.items())
        self._answer(f"active loggers:\n{lines}")

    def _answer(self, text: str, status: int = 200) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers() as server:
        yield server
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("cluster",), ["reviews.test", "9080", "-", "outbound", "EDS", "-"]),
        (("clusters", "--fqdn", "reviews"), ["reviews.test", "9080", "-", "outbound", "EDS", "-"]),
        (("c", "--port", "9080", "--direction", "outbound"), ["reviews.test", "9080", "-", "outbound", "EDS", "-"]),
        (("listener",), ["0.0.0.0", "80", "-", "-"]),
        (("l", "--no-verbose"), ["0.0.0.0", "80", "UNKNOWN"]),
        (("routes", "--name", "80"), ["80", "a", "a", "/x", "-"]),
        (("r", "--no-verbose"), ["80", "1"]),
        (("ep", "--cluster", CLUSTER["name"]), ["10.0.0.1:80", "HEALTHY", "-", CLUSTER["name"], "-"]),
        (("s",), ["edge", "-", "ACTIVE", "false", "-", "-", "-"]),
    ],
)
def test_the_commands_have_istioctls_names_flags_and_rows(words: tuple[str, ...], row: list[str], file: str) -> None:
    done = run(*words, "--file", file)
    assert done.exit_code == 0, done.output
    assert row in [line.split() for line in done.output.splitlines()[1:]]


@pytest.mark.parametrize(
    "words", [("c", "--fqdn", "nobody"), ("ecds",), ("r", "--name", "1"), ("ep", "--status", "draining")]
)
def test_nothing_to_list_is_a_line_and_exit_code_1(words: tuple[str, ...], file: str) -> None:
    done = run(*words, "-f", file)
    assert (done.exit_code, done.output.count("\n")) == (1, 1)


def test_json_yaml_and_the_whole_dump_are_for_programs_and_have_no_key(file: str) -> None:
    assert [each["name"] for each in json.loads(run("c", "--port", "9080", "-o", "json", "-f", file).output)] == [
        CLUSTER["name"]
    ]
    assert yaml.safe_load(run("ep", "-o", "yaml", "-f", file).output)[0]["cluster_name"] == CLUSTER["name"]
    assert json.loads(run("bootstrap", "-f", file).output)["node"] == {"id": "web"}
    whole = run("all", "-o", "json", "-f", file).output
    assert run("all", "-f", "-", stdin=whole).output == run("a", "-f", file).output
    for words in (("all", "-o", "json"), ("s", "-o", "json"), ("b",), ("all",), ("b", "-o", "yaml")):
        assert KEY not in run(*words, "-f", file).output


def test_names_cannot_steer_the_terminal(file: str) -> None:
    assert "\x1b" not in run("all", "-f", file).output
    assert "\\x1b[2J.test" in run("c", "-f", file).output


def test_a_live_envoy_tells_health_and_the_control_plane_the_lines(answers: Answers) -> None:
    live = run("ep", "--admin", answers.address).output
    assert live.splitlines()[1].split()[:3] == ["10.0.0.1:80", "HEALTHY", "FAILED"]
    assert "MADE FROM" not in live
    for words in ((), ("--admin", answers.address)):
        told = run("c", "web-1.shop", "--fqdn", "reviews", "--pilot", answers.address, *words)
        assert told.output.splitlines()[1].split()[-1] == "config/reviews.yaml:3", told.output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("c",), 2, "say which proxy"),
        (("c", "--file", "x", "--admin", "127.0.0.1:1"), 2, "exclude each other"),
        (("c", "--file", "/nowhere"), 1, "/nowhere: can't be read: No such file"),
        (("b", "web-1.shop"), 2, "the control plane has no proxy's bootstrap"),
        (("c", "--admin", "/nowhere.sock"), 1, "cannot ask Envoy's admin interface at /nowhere.sock"),
        (("log", "--level", "loud"), 2, "'loud' is not [LOGGER:]LEVEL"),
        (("log", "--level", "nobody:debug"), 2, "the Envoy has no logger nobody"),
        (("log", "--level", "debug", "--reset"), 2, "exclude each other"),
        (
            ("log", "web-2.shop", "--level", "debug"),
            1,
            "is web-1.shop, not web-2.shop: run this on the machine of web-2",
        ),
    ],
)
def test_a_mistake_is_told_with_what_to_do(words: tuple[str, ...], code: int, says: str, answers: Answers) -> None:
    where = ("--admin",) if words[0] == "log" else ("--pilot",)
    done = run(*words, *where, answers.address)
    assert done.exit_code == code
    assert says in done.output
    assert answers.levels == {"http": "warning", "router": "warning"}


@pytest.mark.parametrize("name", ["web-1.shop", "web-1"])
def test_the_levels_of_an_envoy_are_set_if_it_is_the_one_that_is_named(name: str, answers: Answers) -> None:
    run("log", name, "--admin", answers.address, "--level", "http:debug")
    assert answers.levels == {"http": "debug", "router": "warning"}


def test_log_levels_are_shown_and_set_all_of_them_first(answers: Answers) -> None:
    assert run("log", "--admin", answers.address).output.splitlines()[1] == "  http: warning"
    changed = run("log", "--admin", answers.address, "--level", "http:debug,info", "-o", "json")
    assert json.loads(changed.output) == {"http": "debug", "router": "info"}
    run("log", "--admin", answers.address, "--reset")
    assert answers.levels == {"http": "warning", "router": "warning"}
