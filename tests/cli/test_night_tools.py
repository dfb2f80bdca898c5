"""The tools of a bad night against a real control plane: a report without secrets, profiles, and what they say."""

from __future__ import annotations

import json
import tarfile
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.cli import main
from mesh_pilot.cli.operate.admin_profile import cpu_text, speedscope
from mesh_pilot.model.json import as_json
from mesh_pilot.model.redaction import REDACTED, redacted
from mesh_pilot.ops.api.diagnostics import arguments
from mesh_pilot.ops.process.profiling import INTERVAL_SECONDS, cpu_profile, memory_profile
from tests.support.certificates import write_certificates
from tests.support.command import Done
from tests.support.credentials import write_credential
from tests.support.edge import gateway
from tests.support.fleet import fleet
from tests.support.sample import examples
from tests.support.shop import EDGE

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJlLW9mLWFubg"
VAULT = "hvs.CAESIJlU02LBRwAjXzYl4JN3uCzN0aFSWz"
PASSWORD = "correct-horse-battery"
SECRETS = (JWT, VAULT, PASSWORD)

OBJECTS = f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: leaky, namespace: shop, annotations: {{note: "curl https://ann:{PASSWORD}@example.test/"}}}}
spec:
  hosts: [leaky.test]
  http:
  - headers: {{request: {{set: {{authorization: "Bearer {JWT}", x-vault: "{VAULT}"}}}}}}
    route: [{{destination: {{host: leaky.test}}}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{name: leaky, namespace: shop}}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {{cluster: {{service: nobody.test}}}}
    patch: {{operation: MERGE, value: {{metadata: {{filter_metadata: {{x: {{password: {PASSWORD}}}}}}}}}}}
"""


def mesh_pilot(*words: str) -> Done:
    """The command, in this process: what the control plane logs meanwhile is in its output, too."""
    with CliRunner().isolation() as (out, err, _), pytest.raises(SystemExit) as caught:
        main([*words])
    assert isinstance(caught.value.code, int)
    return Done(caught.value.code, out.getvalue().decode(), err.getvalue().decode())


@pytest.mark.envoy
async def test_a_report_has_everything_but_secrets_and_profiles_tell_where_time_goes(
    tmp_path: Path, free_ports: Any
) -> None:
    (port,) = free_ports(1)
    secrets, socket = tmp_path / "secrets", tmp_path / "admin.sock"
    secrets.mkdir()
    files = write_certificates(tmp_path, "cert", dns=("a.test",))
    write_credential(secrets / "shop", "cert", files)
    servers = """
    - port: {number: $port, name: https, protocol: HTTPS}
      hosts: [a.test]
      tls: {mode: SIMPLE, credentialName: cert}
    """
    async with fleet(tmp_path, secrets=secrets, admin_socket=socket) as mesh:
        await mesh.apply(gateway("edge", servers, port=port) + OBJECTS)
        await mesh.envoy(EDGE)

        async def run(*words: str, pilot: str = f"unix://{socket}") -> Done:
            return await trio.to_thread.run_sync(partial(mesh_pilot, *words, "--pilot", pilot))

        report = tmp_path / "report.tar.gz"
        done = await run("bug-report", "--into", str(report))
        assert (done.code, done.err) == (0, "")
        assert report.stat().st_mode & 0o077 == 0
        with tarfile.open(report) as archive:
            found = {
                each.name.removeprefix("mesh-pilot-report/"): (archive.extractfile(each) or report.open("rb")).read()
                for each in archive.getmembers()
            }
        assert {"README.txt", "status.json", "process.json", "objects.json", "metrics.txt", "proxies.json"} <= {*found}
        assert not found["errors.txt"].strip()
        assert b'"revision"' in found["history.json"], "that of this run"
        assert b'"name": "leaky"' in found["objects.json"]
        assert b"pilot_xds" in found["metrics.txt"]
        assert b"kubernetes://cert" in found["dumps/edge.shop.json"]
        lines = [line for line in files.key.read_text().splitlines() if len(line) > 40 and "-----" not in line]
        assert lines
        for name, content in found.items():
            for secret in (*SECRETS, *lines, "PRIVATE KEY"):
                assert secret.encode() not in content, f"{secret} is in {name}"

        viewer = await run("bug-report", "--into", str(report), pilot=mesh.plane.addresses.http or "")
        assert (viewer.code, viewer.err.count("\n")) == (0, 1), "the arguments need another role"
        assert "process.json: " in viewer.err

        async def profile(kind: str, *words: str) -> Any:
            await run("admin", "profile", kind, "--seconds", "1", *words, "--into", str(tmp_path / kind))
            return json.loads(await trio.Path(tmp_path / kind).read_text())

        cpu = await profile("cpu", "--format", "json")
        assert cpu["samples"] > 0
        assert cpu["interval_seconds"] == INTERVAL_SECONDS
        assert any("cli/operate/admin_profile.py:cpu" in stack for stack in cpu["stacks"]), (
            "the command, in this process"
        )
        memory = await profile("memory", "-o", "json")
        assert memory["resident_bytes"] > 1_000_000
        assert isinstance(memory["lines"], list)
        away = await run("bug-report", "--into", str(report), pilot="unix:///nowhere.sock")
        assert (away.code, away.err.count("\n")) == (1, 1)
        inside = await run("bug-report", "--into", str(tmp_path))
        assert (inside.code, inside.err) == (1, f"mesh-pilot: {tmp_path}: is a folder; --into names the archive\n")
        assert not await trio.to_thread.run_sync(lambda: [*tmp_path.glob(".*.part")])


def test_a_memory_profile_names_the_line_that_took_it_and_traces_nothing_afterwards() -> None:
    stop, kept = threading.Event(), []

    def take() -> None:
        while not tracemalloc.is_tracing():
            pass
        kept.append(bytearray(1_000_000))
        stop.set()

    thread = threading.Thread(target=take)
    thread.start()
    found: Any = as_json(memory_profile(30, stop))
    thread.join()
    assert any(line["bytes"] >= 1_000_000 and "test_night_tools.py" in line["line"] for line in found["lines"])
    assert not tracemalloc.is_tracing()


def test_a_cpu_profile_sees_what_a_thread_does_until_it_is_stopped() -> None:
    stop, seen = threading.Event(), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            seen.set()

    thread = threading.Thread(target=spin, name="spinner")
    thread.start()
    seen.wait()
    found: Any = as_json(cpu_profile(0.2, threading.Event()))
    stopped: Any = as_json(cpu_profile(30, stop_now()))
    stop.set()
    thread.join()
    assert any(stack.startswith("spinner;") and "spin" in stack for stack in found["stacks"])
    assert stopped["samples"] == 0


def stop_now() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


PROFILE = {
    "seconds": 1.0,
    "cpu_seconds": 0.5,
    "interval_seconds": 0.005,
    "samples": 12,
    "idle": 2,
    "stacks": {"MainThread;a:run;b:work": 6, "MainThread;a:run": 2, "other;c:wait": 2},
}


def test_a_profile_tells_functions_with_and_without_what_they_call() -> None:
    rows = [line.split() for line in cpu_text(PROFILE).splitlines()[2:]]
    assert rows == [
        ["60.0", "%", "60.0", "%", "b:work"],
        ["20.0", "%", "80.0", "%", "a:run"],
        ["20.0", "%", "20.0", "%", "c:wait"],
    ]


def test_a_profile_for_speedscope_has_a_thread_each_and_frames_by_number() -> None:
    found = speedscope(PROFILE)
    names = [frame["name"] for frame in found["shared"]["frames"]]
    assert [profile["name"] for profile in found["profiles"]] == ["MainThread", "other"]
    main = found["profiles"][0]
    assert [[names[number] for number in sample] for sample in main["samples"]] == [["a:run", "b:work"], ["a:run"]]
    assert main["endValue"] == pytest.approx(0.04)


def test_arguments_are_told_without_the_values_of_secret_flags() -> None:
    line = ["discovery", "--consul-token", "abc", "--vault-token=xyz", "--token-dir", "/t", "--no-state"]
    blank = ["discovery", "--consul-token", REDACTED, f"--vault-token={REDACTED}", "--token-dir", "/t", "--no-state"]
    assert arguments(line) == blank


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"token": "x"}, False),
        ({"clientSecret": "x"}, False),
        ({"CONSUL_HTTP_TOKEN": "x"}, False),
        ({"name": "VAULT_TOKEN", "value": "x"}, False),
        ({"VAULT_SECRET_ID": "x"}, False),
        ({"x-api-key": "x"}, False),
        ({"AWS_SECRET_ACCESS_KEY": "x"}, False),
        ({"api_keys_file": "x"}, True),
        ({"auth": {"password": ["x"]}}, False),
        ({"key": "authorization", "value": "x"}, False),
        ({"x-api-key": {"exact": "x"}}, False),
        ({"VAULT_SECRET_ID": "x"}, False),
        ({"name": "x-api-key", "string_match": {"exact": "x"}}, False),
        ({"key": "request.headers[x-api-key]", "values": ["x"]}, False),
        ({"key": "request.headers[x-user]", "values": ["x"]}, True),
        ({"credentialName": "x"}, True),
        ({"primary_key_id": "x"}, True),
        ({"token_file": "x"}, True),
        ({"key": "version", "value": "x"}, True),
        ({"name": "x"}, True),
    ],
)
def test_values_are_blanked_by_the_names_of_their_fields(value: Any, kept: bool) -> None:
    assert ('"x"' in json.dumps(redacted(value))) is kept


@settings(max_examples=examples(40))
@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.sampled_from([JWT, f"bearer {VAULT}", f"https://a:{PASSWORD}@b", f"https://b/?a=1&token={PASSWORD}"]),
)
def test_secrets_are_found_wherever_they_stand_in_a_text(before: str, after: str, secret: str) -> None:
    shown = redacted(f"{before} {secret} {after}")
    assert not any(each in shown for each in SECRETS)
