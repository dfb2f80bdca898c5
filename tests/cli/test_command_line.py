"""The command line from outside: a caller's mistake is one line, and ``discovery`` starts, serves and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml

from mesh_pilot import __version__
from mesh_pilot.cli import COMMANDS
from mesh_pilot.cli.discovery.command import command as discovery_command
from mesh_pilot.cli.lib.options import OTHER, SectionedCommand, is_common, section_of
from mesh_pilot.cli.lib.suggestions import WORDS
from mesh_pilot.sources.files.mesh import load_mesh_config
from tests.support.command import COMMAND, mesh_pilot

SAMPLE = Path(__file__).parents[2] / "samples" / "demo"
IGNORED = "signal without effect: files are read when they change, logs go to standard error"
FREE = tuple(f"--{port}-addr=127.0.0.1:0" for port in ("grpc", "secure-grpc", "http", "monitoring"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "nothing to serve: name a folder of Istio YAML with --config-dir"),
        (["--config-dir", "{there}", "--no-such-flag"], 2, "there is no flag --no-such-flag"),
        (["--config-dir", "{there}/nothing"], 1, "cannot read the folder {there}/nothing: No such file or directory"),
        (["--config-dir", "{there}", "--grpc-addr", "15010"], 2, "'15010' has no port"),
        (
            ["--config-dir", "{there}", "--grpc-addr", "{taken}"],
            1,
            "--grpc-addr: cannot listen on {taken}: Address already in use",
        ),
        (["--config-dir", "{there}", "--http-addr", "{taken}"], 1, "--http-addr: cannot listen on {taken}"),
        (["--config-dir", "{there}", "--secure-grpc-addr", "{taken}"], 1, "--secure-grpc-addr: cannot listen on"),
        (["--config-dir", "{there}", "--monitoring-addr", "{taken}"], 1, "--monitoring-addr: cannot listen on"),
        (
            ["--config-dir", "{there}", "--accept-kubernetes-tokens", "--kubernetes-kubeconfig", "{there}/none"],
            1,
            "--kubernetes-kubeconfig: cannot read the kubeconfig {there}/none: No such file",
        ),
        (["--config-dir", "{there}", "--log-level", "xsd:debug"], 2, "unknown scope 'xsd'"),
        (["--config-dir", "{there}", "--shutdown-duration", "10"], 2, "'10' is not a duration"),
        (["--config-dir", "{there}", "--tls-cert", "a.pem"], 2, "needs both of --tls-cert and --tls-key"),
        (["--config-dir", "{there}", "--ca-consul-key", "ca"], 2, "needs an agent to ask: --consul-server-url"),
        (["--ca-consul-key", "ca", "--consul-server-url", "http://c:1"], 2, "would be stored in plaintext"),
        (
            ["--config-dir", "{there}", "--ca-signer", "{broken}"],
            1,
            "{broken}:1: kind: is missing; known: vault, ",
        ),
        (
            ["--config-dir", "{there}", "--vault-addr", "http://v"],
            2,
            "--vault-addr is now a field of a file: --ca-signer",
        ),
        (["--config-dir", "{there}", "--mesh-config", "{there}/nothing"], 1, "{there}/nothing: can't be read"),
        (["--config-dir", "{there}", "--mesh-config", "{broken}"], 1, "{broken}:2: connectTimeout:"),
        (["--config-dir", "{there}", "--networks-config", "{broken}"], 1, "{broken}:1: trustDomain: unknown"),
    ],
)
def test_a_mistake_at_the_start_is_a_line_and_a_code(
    arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    broken = tmp_path / "mesh.txt"
    broken.write_text("trustDomain: example.test\nconnectTimeout: soon\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = {
            "there": str(tmp_path),
            "broken": str(broken),
            "taken": f"127.0.0.1:{taken.getsockname()[1]}",
        }
        filled = [argument.format(**words) for argument in arguments]
        done = mesh_pilot("discovery", *FREE, "--state-dir", str(tmp_path / "state"), *filled)
    assert (done.code, done.out) == (code, "")
    made = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert made <= {broken.name, "state.lock"}, "nothing is made for a plane that does not start"
    assert all(line.startswith("mesh-pilot: ") for line in done.err.splitlines())
    assert done.err.count("\n") == (2 if "--networks-config" in arguments else 1), "a line for each mistake"
    assert says.format(**words) in done.err


@contextmanager
def discovery(*arguments: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running ``mesh-pilot discovery``; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, "discovery", *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], start: str) -> list[str]:
    """The lines of standard output up to the one that starts so."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(start):
            return lines
    raise AssertionError(f"ended without {start!r}: {lines} {process.stderr and process.stderr.read()}")


def said(lines: list[str], what: str) -> str:
    """The address that a line of the start names."""
    (found,) = [line.split()[-1] for line in lines if line.strip().startswith(what)]
    return found


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_becomes_ready_and_ends_with_0_on_a_signal(number: signal.Signals) -> None:
    mesh = ("--mesh-config", str(SAMPLE / "mesh.yaml"))
    with discovery("--config-dir", str(SAMPLE / "config"), *mesh, *FREE) as process:
        lines = read_until(process, "ready after")
        assert lines[0] == f"mesh-pilot {__version__} serves"
        assert lines[-1].endswith("4 objects, 1 service, 0 refused")
        web, metrics = said(lines, "web"), said(lines, "metrics")
        assert httpx.get(f"{web}ready", trust_env=False, timeout=60).text == "ready\n"
        assert "pilot_services 1.0" in httpx.get(metrics, trust_env=False, timeout=60).text
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.process
def test_every_flag_is_also_an_environment_variable(tmp_path: Path) -> None:
    env = {
        "MESH_PILOT_CONFIG_DIR": f"{SAMPLE / 'config'}:{tmp_path}",
        "MESH_PILOT_GRPC_ADDR": "127.0.0.1:0",
        "MESH_PILOT_SECURE_GRPC_ADDR": "127.0.0.1:0",
        "MESH_PILOT_HTTP_ADDR": "127.0.0.1:0",
        "MESH_PILOT_MONITORING_ADDR": "127.0.0.1:0",
        "MESH_PILOT_LOG_LEVEL": "none",
    }
    with discovery(env=env) as process:
        lines = read_until(process, "ready after")
        assert lines[-2].strip() == f"from               {SAMPLE / 'config'}, {tmp_path}"
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def read_event(process: subprocess.Popen[str], message: str) -> dict[str, Any]:
    """The event of a JSON log with that message; whatever stands before it must be JSON too."""
    assert process.stderr is not None
    for line in process.stderr:
        event: dict[str, Any] = json.loads(line)
        if event["msg"] == message:
            return event
    raise AssertionError(f"ended without {message!r}")


@pytest.mark.process
@pytest.mark.smoke
def test_with_json_all_that_is_said_is_json_and_goes_to_standard_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("no: [yaml")
    with discovery("--config-dir", str(tmp_path), "--log-format", "json", *FREE) as process:
        assert process.stdout is not None and process.stderr is not None
        serving = read_event(process, "serving")
        assert serving["sources"] == [str(tmp_path)]
        assert httpx.get(f"http://{serving['http']}/healthz", trust_env=False, timeout=60).text == "ok\n"
        started = read_event(process, "started")
        assert (started["level"], started["objects"], started["refused"]) == ("info", 0, 1)
        process.terminate()
        assert process.wait(20) == 0
        read_event(process, "draining")
        for line in process.stderr:
            json.loads(line)
        assert process.stdout.read() == ""
    done = mesh_pilot("discovery", "--config-dir", str(tmp_path / "nothing"), "--log-format", "json", *FREE)
    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["reason"].startswith("cannot read the folder")


@pytest.mark.process
def test_signals_that_mean_nothing_here_do_not_end_it() -> None:
    with discovery("--config-dir", str(SAMPLE / "config"), "--log-format", "json", *FREE) as process:
        serving = read_event(process, "serving")
        read_event(process, "started")
        for number in (signal.SIGHUP, signal.SIGUSR2):
            process.send_signal(number)
            assert read_event(process, IGNORED)["signal"] == number.name
        process.send_signal(signal.SIGUSR1)
        parts = {(found := read_event(process, "statistics"))["part"]: found for _ in range(5)}
        assert parts["world"]["configs.ServiceEntry"] == 1
        assert httpx.get(f"http://{serving['http']}/ready", trust_env=False, timeout=60).text == "ready\n"
        process.terminate()
        read_event(process, "draining")
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0


@pytest.mark.process
def test_statistics_can_be_asked_for_in_text_too() -> None:
    with discovery("--config-dir", str(SAMPLE / "config"), *FREE) as process:
        read_until(process, "ready after")
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "msg=statistics part=changes" in line)
        assert " config_events.ServiceEntry/add=1 " in line


def test_the_variable_of_a_flag_is_its_name() -> None:
    for param in discovery_command.params:
        if isinstance(param, click.Option) and param.name != "help_all":
            assert param.envvar == "MESH_PILOT_" + param.opts[0].removeprefix("--").upper().replace("-", "_")


def test_every_command_explains_itself() -> None:
    for name in COMMANDS:
        done = mesh_pilot(name, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: mesh-pilot {name}")


def test_without_a_command_the_commands_are_listed() -> None:
    done = mesh_pilot()
    assert done.code == 2
    assert all(name in done.err for name in COMMANDS)
    assert mesh_pilot("no-such").err == "mesh-pilot: mesh-pilot has no command 'no-such'; see mesh-pilot --help\n"
    assert mesh_pilot("help").out == mesh_pilot("--help").out
    assert mesh_pilot("help", "pc", "route").out == mesh_pilot("proxy-config", "route", "--help").out


GUESSES = {
    "proxy-stats": "proxy-status",
    "clusters": "remote-clusters",
    "validate": "analyze",
    "lint": "analyze",
    "services": "get services",
    "logs": "admin log",
    "proxies": "proxy-status",
    "status": "admin status",
    "-v": "--version",
    "ca rotat": "rotate",
    "pc clusterz": "cluster",
    "history lst": "list",
    "get vs --namespce shop": "--namespace",
}


@pytest.mark.parametrize(("guess", "meant"), GUESSES.items(), ids=GUESSES)
def test_a_guess_is_answered_with_what_is_meant(guess: str, meant: str) -> None:
    done = mesh_pilot(*guess.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.endswith(f"; did you mean {meant}?\n")


def test_words_of_other_tools_lead_to_commands_that_there_are() -> None:
    assert not {*WORDS} & {*COMMANDS}
    for command in WORDS.values():
        assert mesh_pilot("help", *command.split()).code == 0, command


HEAVY = ("trio", "structlog", "httpx", "grpclib", "h2", "yaml", "google.protobuf", "betterproto2", "cryptography")


@pytest.mark.process
@pytest.mark.smoke
def test_completion_loads_nothing_of_what_the_command_does() -> None:
    """One process completes the flags of all commands. The help of all is asked in ``test_help.py``."""
    code = f"""
import contextlib, io, os, sys
from mesh_pilot.cli import COMMANDS, main
for words in [*((name,) for name in COMMANDS), ("mcp", "dump")]:
    os.environ["COMP_WORDS"] = f"mesh-pilot {{' '.join(words)}} --"
    os.environ["COMP_CWORD"] = str(len(words) + 1)
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([])
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    if heavy or b"--help" not in out.buffer.getvalue():
        sys.exit(f"{{words}}: loaded {{heavy}}, said {{out.buffer.getvalue()!r}}")
"""
    env = {**os.environ, "_MESH_PILOT_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_help_of_discovery_is_in_sections() -> None:
    assert isinstance(discovery_command, SectionedCommand)
    flags = [param for param in discovery_command.params if isinstance(param, click.Option)]
    for name, shown in (("--help", [each for each in flags if is_common(each)]), ("--help-all", flags)):
        done = mesh_pilot("discovery", name)
        titles = [line.rstrip(":") for line in done.out.splitlines() if line.endswith(":") and not line.startswith(" ")]
        sections = [title for title in dict.fromkeys(map(section_of, shown)) if title != OTHER]
        assert titles == [*sections, OTHER]
        assert [each.opts[0] for each in shown if f"  {each.opts[0]}" not in done.out] == []
    text = " ".join(done.out.split())
    assert text.index("--consul-token ") > text.index("Consul:") > text.index("--mcp-server ")


def test_the_help_of_discovery_shows_what_people_use_and_names_the_rest() -> None:
    done = mesh_pilot("discovery", "--help")
    assert len(done.out.splitlines()) < 120
    assert "more flags, which few need: mesh-pilot discovery --help-all" in " ".join(done.out.split())
    assert "--consul-max-queries" not in done.out


def test_the_version_is_said() -> None:
    assert mesh_pilot("version").out.startswith(f"mesh-pilot {__version__} (Python ")
    assert mesh_pilot("--version").out == mesh_pilot("version").out


@pytest.mark.process
def test_proxy_status_of_a_server_without_proxies_and_of_none() -> None:
    with discovery("--config-dir", str(SAMPLE / "config"), *FREE) as process:
        web = said(read_until(process, "ready after"), "web").removeprefix("http://").rstrip("/")
        assert mesh_pilot("proxy-status", "--pilot", web).out == "no proxy is connected\n"
    done = mesh_pilot("proxy-status", "--pilot", web)
    assert done.code == 1
    assert done.err.startswith("mesh-pilot: cannot ask ")
    assert web in done.err


ODD_NAMES = """\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews.test, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}}
"""


@pytest.mark.process
def test_what_is_dumped_is_what_analyze_and_the_server_read(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    copy.mkdir()
    (source / "a.yaml").write_text(ODD_NAMES)
    (tmp_path / "mesh.yaml").write_text("meshMTLS: {minProtocolVersion: TLSV1_3}\ntrustDomain: shop.test\n")
    settings = ("--mesh-config", str(tmp_path / "mesh.yaml"), "--log-format", "json")
    with discovery("--config-dir", str(source), *settings, *FREE) as process:
        grpc = read_event(process, "serving")["grpc"]
        read_event(process, "started")
        for server in (grpc, f"xds://{grpc}"):
            done = mesh_pilot("mcp", "dump", server)
            assert done.out.count("kind: DestinationRule") == 1, "once, though it is served in several versions"
            (copy / "dump.yaml").write_text(done.out)
            analyzed = mesh_pilot("analyze", str(copy))
            assert (analyzed.code, analyzed.out.splitlines()[-1]) == (
                0,
                "1 object is good, 0 errors, 1 warning, 1 ignored",
            )
            (settings_map,) = [one for one in yaml.safe_load_all(done.out) if one and one["kind"] == "ConfigMap"]
            (tmp_path / "again.yaml").write_text(yaml.safe_dump(settings_map))
            mesh = load_mesh_config(str(tmp_path / "again.yaml"))
            assert (mesh.trust_domain, mesh.mesh_mTLS is not None) == ("shop.test", True)


def test_dumping_a_web_page_or_a_url_is_one_line_that_says_what_is_meant() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{page.server_address[1]}"
        done = mesh_pilot("mcp", "dump", address)
        page.shutdown()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "; SERVER is a gRPC port, such as 15010 of a mesh-pilot or an istiod, not that of a web page" in done.err
    done = mesh_pilot("mcp", "dump", f"http://{address}")
    assert (done.code, done.out) == (2, "")
    assert f"'http://{address}' is a URL; SERVER is host:port, or xds://host:port" in done.err


def test_an_envoy_bootstrap_is_written_from_flags() -> None:
    done = mesh_pilot(
        *("envoy-bootstrap", "--id", "web-1", "--namespace", "shop", "--ip", "10.1.1.1", "--label", "app=web"),
        *("--interception", "NONE", "--delta", "--locality", "eu/eu-1", "--pilot", "pilot.test:15010"),
    )
    assert done.code == 0
    bootstrap = yaml.safe_load(done.out)
    assert bootstrap["node"]["id"] == "sidecar~10.1.1.1~web-1.shop~shop.svc.cluster.local"
    assert bootstrap["node"]["metadata"]["INTERCEPTION_MODE"] == "NONE"
    assert bootstrap["dynamic_resources"]["ads_config"]["api_type"] == "DELTA_GRPC"
    assert "VIRTUAL_HOSTS" not in bootstrap["node"]["metadata"]
    for wrong, says in (
        (("--ip", "10.1.1.1", "--tls-ca", "ca.pem"), "mutual TLS needs all of --tls-ca, --tls-cert and --tls-key"),
        (("--ip", "10.1.1.1", "--sds-dir", "sds"), "--sds-dir is for certificates"),
        (("--ip", "notanip"), "'notanip' is not an IP address, such as 10.1.1.1 or fd00::1"),
    ):
        refused = mesh_pilot("envoy-bootstrap", "--id", "web-1", *wrong)
        assert (refused.code, refused.out) == (2, "")
        assert says in refused.err


START = "envoy -c FILE --drain-time-s 45 --drain-strategy immediate"


def test_a_bootstrap_says_how_to_start_envoy_with_it() -> None:
    done = mesh_pilot("envoy-bootstrap", "--id", "web-1", "--ip", "fd00::1")
    assert done.out.startswith(f"# {START}\nnode:\n")
    assert done.err == f"start it so, FILE being where you save it: {START}\n"


def test_with_certificates_it_writes_the_files_through_which_envoy_reads_them_again(tmp_path: Path) -> None:
    sds, certificates = tmp_path / "sds", tmp_path / "pki"
    tls = [word for part in ("ca", "cert", "key") for word in (f"--tls-{part}", str(certificates / f"{part}.pem"))]
    asked = ("envoy-bootstrap", "--id", "web-1", "--ip", "10.1.1.1", *tls, "--sds-dir", str(sds))
    done = mesh_pilot(*asked)
    assert (done.code, done.out) == (1, "")
    assert f"cannot write {sds}/control-plane-certificate.yaml: No such file or directory; see --sds-dir" in done.err
    sds.mkdir()
    done = mesh_pilot(*asked)
    files = [sds / f"control-plane-{name}.yaml" for name in ("certificate", "ca")]
    assert [line for line in done.err.splitlines() if line.startswith("wrote")] == [f"wrote {file}" for file in files]
    assert all(str(file) in done.out for file in files)
    assert "cert.pem" not in done.out
    (secret,) = yaml.safe_load(files[0].read_text())["resources"]
    assert secret["tls_certificate"] == {
        "certificate_chain": {"filename": f"{certificates}/cert.pem"},
        "private_key": {"filename": f"{certificates}/key.pem"},
        "watched_directory": {"path": str(certificates)},
    }


def test_an_envoy_of_delta_can_ask_for_virtual_hosts_one_by_one() -> None:
    asked = ("envoy-bootstrap", "--id", "web-1", "--ip", "10.1.1.1", "--virtual-hosts", "split")
    done = mesh_pilot(*asked, "--delta")
    assert yaml.safe_load(done.out)["node"]["metadata"]["VIRTUAL_HOSTS"] == "split"
    refused = mesh_pilot(*asked)
    assert (refused.code, "needs --delta" in refused.err) == (2, True)


def test_a_sidecar_of_delta_can_ask_for_clusters_on_demand() -> None:
    asked = ("envoy-bootstrap", "--id", "web-1", "--ip", "10.1.1.1", "--clusters", "on-demand")
    done = mesh_pilot(*asked, "--delta")
    assert yaml.safe_load(done.out)["node"]["metadata"]["CLUSTERS"] == "on-demand"
    for wrong in ((), ("--delta", "--type", "router")):
        refused = mesh_pilot(*asked, *wrong)
        assert (refused.code, "is for sidecars" in refused.err) == (2, True)


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ["version"],
        ["--help"],
        ["proxy-config", "--help"],
        ["analyze", str(SAMPLE)],
        ["analyze", str(SAMPLE), "-o", "json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_takes_nothing_is_one_line(
    arguments: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "mesh-pilot: cannot write to standard output: No space left on device\n",
    )
