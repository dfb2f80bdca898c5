"""``mesh-pilot migrate``, run as its users run it: what it writes, refuses, keeps, and says."""

from __future__ import annotations

import base64
import io
import json
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot.cli import main
from tests.migration.dumps import HERE
from tests.support.certificates import write_certificates
from tests.support.command import Done, mesh_pilot
from tests.support.consul import real_consul

KUMA, CONSUL, KUBERNETES = (str(HERE / name) for name in ("kuma", "consul", "kubernetes"))
SPLITTER = {"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 60, "Service": "a"}, {"Weight": 40}]}

Ports = Callable[[int], list[int]]
Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, which saves its start; logging stays as it is."""
    monkeypatch.setattr("mesh_pilot.cli.lib.logs.configure", lambda *_: None)

    def run(*arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Done:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main(["migrate", *arguments])
        written = capsys.readouterr()
        return Done(int(ended.value.code or 0), written.out, written.err)

    return run


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_is_written_that_analyze_finds_good(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    done = mesh_pilot("migrate", KUBERNETES, "--to", str(folder))
    assert done.code == 0
    assert "not taken: 7" in done.out
    assert f"the whole list: {folder}/MIGRATION.md" in done.out
    analyzed = mesh_pilot("analyze", str(folder / "config"), str(folder / "mesh.yaml"))
    assert analyzed.code == 0, analyzed.out


def test_the_same_sources_give_the_same_bytes(tmp_path: Path, run: Run) -> None:
    for name in ("a", "b"):
        assert run(KUMA, "--to", str(tmp_path / name)).code == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_dry_run_writes_nothing(tmp_path: Path, run: Run) -> None:
    done = run(KUMA, "--to", str(tmp_path / "mesh"), "--dry-run")
    assert (done.code, (tmp_path / "mesh").exists()) == (0, False)
    assert f"would be written to {tmp_path}/mesh: 22 files" in done.out


def test_strict_makes_what_is_not_taken_an_error(tmp_path: Path, run: Run) -> None:
    assert run(KUMA, "--to", str(tmp_path / "mesh"), "--strict").code == 1
    source = tmp_path / "good.json"
    source.write_text(json.dumps(SPLITTER))
    assert run(str(source), "--to", str(tmp_path / "good"), "--strict").code == 0


def test_a_folder_with_files_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run(KUMA, "--to", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "is not empty: give --merge to keep its files, or --force to write over them" in done.err
    assert list(tree(tmp_path)) == ["notes.txt"]


def test_merge_keeps_what_others_wrote_or_changed_and_renews_its_own(tmp_path: Path, run: Run) -> None:
    source, folder = tmp_path / "entries.json", tmp_path / "mesh"
    source.write_text(json.dumps([SPLITTER, {"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "5s"}]))
    assert run(str(source), "--to", str(folder)).code == 0
    changed = folder / "config" / "default" / "DestinationRule-consul-db.yaml"
    changed.write_text("# mine now\n")
    (folder / "config" / "default" / "mine.yaml").write_text("# mine\n")
    source.write_text(json.dumps([{**SPLITTER, "Splits": [{"Weight": 100, "Service": "b"}]},
                                  {"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "7s"}]))  # fmt: skip
    done = run(str(source), "--to", str(folder), "--merge", "--strict")
    assert done.code == 1
    path = "config/default/DestinationRule-consul-db.yaml"
    assert f"kept, as it is not of this command or was changed since: {folder}/{path}" in done.out
    assert changed.read_text() == "# mine now\n"
    assert (folder / "config" / "default" / "mine.yaml").read_text() == "# mine\n"
    assert "b.service.consul" in (folder / "config" / "default" / "VirtualService-consul-web.yaml").read_text()
    assert run(str(source), "--to", str(folder), "--force").code == 0
    assert "7s" in changed.read_text()
    assert (folder / "config" / "default" / "mine.yaml").exists()


def test_json_has_all_that_the_text_has(tmp_path: Path, run: Run) -> None:
    done = run(CONSUL, "--to", str(tmp_path / "mesh"), "-o", "json")
    told = json.loads(done.out)
    assert (told["from"], told["taken"]["service-router"]) == ("consul", 1)
    assert {"where", "object", "reason"} <= told["untaken"][0].keys()
    assert "config/default/VirtualService-consul-web.yaml" in told["written"]


def test_standard_input_is_a_source(tmp_path: Path, run: Run) -> None:
    done = run("-", "--to", str(tmp_path / "mesh"), stdin=json.dumps(SPLITTER))
    assert (done.code, (tmp_path / "mesh/config/default/VirtualService-consul-web.yaml").exists()) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name a SOURCE, or a Consul agent to ask"),
        (("--from", "kuma"), "kuma is read from files"),
        ((KUMA, CONSUL), "the sources are of several meshes"),
        ((CONSUL, "--from", "kuma"), "--from kuma: nothing in the sources is of kuma;"),
        ((KUMA, "--from", "kubernetes"), "is of kuma"),
        ((KUMA, "--force", "--merge"), "give one of them"),
    ],
)
def test_a_misuse_is_one_line(tmp_path: Path, run: Run, arguments: tuple[str, ...], reason: str) -> None:
    done = run(*arguments, "--to", str(tmp_path / "mesh"), env={"CONSUL_HTTP_ADDR": ""})
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert reason in done.err


def test_sources_that_say_nothing_need_the_name_of_their_mesh(tmp_path: Path, run: Run) -> None:
    done = run("-", "--to", str(tmp_path / "mesh"), stdin="hello: world")
    assert (done.code, "give --from" in done.err) == (2, True)


def test_sources_of_which_nothing_is_taken_are_an_error(tmp_path: Path, run: Run) -> None:
    source = tmp_path / "nothing.yaml"
    source.write_text("[]")
    done = run(str(source), "--from", "kuma", "--to", str(tmp_path / "mesh"), "--dry-run")
    assert (done.code, "nothing was taken from the sources" in done.err) == (1, True)


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path, run: Run) -> None:
    done = run(str(tmp_path / "nothing"), "--to", str(tmp_path / "mesh"))
    assert (done.code, done.err) == (1, f"mesh-pilot: cannot read {tmp_path}/nothing: No such file or directory\n")


def test_dumps_of_bug_reports_have_no_ending(tmp_path: Path, run: Run) -> None:
    report = tmp_path / "report" / "cluster"
    report.mkdir(parents=True)
    (report / "crs").write_bytes((HERE / "kubernetes" / "dump.yaml").read_bytes())
    (report / "events").write_text("LAST SEEN  TYPE\n")
    done = run(str(tmp_path / "report"), "--to", str(tmp_path / "mesh"), "-o", "json")
    told = json.loads(done.out)
    assert told["taken"]["VirtualService"] == 1
    assert f"{report}/events" in {each["where"] for each in told["untaken"]}


def test_keys_are_for_their_owner_only(tmp_path: Path, run: Run) -> None:
    files = write_certificates(tmp_path, "shop", dns=("bookinfo.example",))
    text = (HERE / "kubernetes" / "dump.yaml").read_text()
    for mark, file in (("@CERT@", files.certificate), ("@KEY@", files.key)):
        text = text.replace(mark, base64.b64encode(file.read_bytes()).decode())
    done = run("-", "--to", str(tmp_path / "mesh"), "--secrets", stdin=text)
    assert done.code == 0
    folder = tmp_path / "mesh" / "secrets" / "istio-system" / "bookinfo-cert"
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {"tls.crt": 0o600, "tls.key": 0o600}
    assert stat.S_IMODE((tmp_path / "mesh" / "secrets").stat().st_mode) == 0o700
    assert "--secrets-dir secrets" in (tmp_path / "mesh" / "MIGRATION.md").read_text()
    assert "PRIVATE KEY" not in done.out


@pytest.mark.smoke
@pytest.mark.process
async def test_a_live_consul_is_asked(tmp_path: Path, free_ports: Ports, run: Run) -> None:
    async with real_consul(tmp_path, free_ports(4), config={"connect": {"enabled": True}}) as consul:
        upstreams = [{"DestinationName": "reviews", "LocalBindPort": 9191}]
        sidecar = {"SidecarService": {"Port": 21000, "Proxy": {"Upstreams": upstreams}}}
        await consul.register("web", address="10.0.0.2", Connect=sidecar)
        await consul.register("reviews", address="10.0.0.3", meta={"version": "v1", "protocol": "http"})
        splits = [{"Weight": 90}, {"Weight": 10, "Service": "web"}]
        for entry in (
            {"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}},
            {"Kind": "service-splitter", "Name": "reviews", "Splits": splits},
        ):
            await consul.ask("PUT", "/v1/config", json=entry)
        denied = {"SourceName": "web", "DestinationName": "reviews", "SourceType": "consul", "Action": "deny"}
        await consul.ask("POST", "/v1/connect/intentions", json=denied)
        arguments = ["--from", "consul", "--to", str(tmp_path / "mesh"), "--services", "-o", "json"]
        asked = partial(run, *arguments, env={"CONSUL_HTTP_ADDR": consul.address})
        done = await trio.to_thread.run_sync(asked)
    assert done.code == 0, done.err
    written = set(json.loads(done.out)["written"])
    assert written == {
        f"config/default/{name}.yaml"
        for name in (
            "AuthorizationPolicy-consul-reviews",
            "ServiceEntry-consul-reviews",
            "ServiceEntry-consul-web",
            "Sidecar-consul-web",
            "VirtualService-consul-reviews",
        )
    }


def test_a_consul_that_is_not_there_is_an_error(tmp_path: Path, free_ports: Ports, run: Run) -> None:
    (port,) = free_ports(1)
    done = run("--to", str(tmp_path / "mesh"), "--consul-server-url", f"http://127.0.0.1:{port}")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert f"cannot read Consul at http://127.0.0.1:{port}" in done.err
