"""``mesh-pilot analyze`` on folders, run as its users run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mesh_pilot.explain.analysis.codes import CODES
from tests.support.command import mesh_pilot, on_terminal

SAMPLES = Path(__file__).parents[2] / "samples"
GOOD = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
"""
BAD = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ratings, namespace: shop}
spec:
  hosts: [ratings.test]
  ports: [{number: many, name: http, protocol: HTTP}]
  resolution: DNS
"""
IDLE = """\
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: extra, namespace: shop}
spec:
  url: "oci://registry.test/extra:1"
  verificationKey: key
"""


def test_a_folder_without_faults_is_good() -> None:
    done = mesh_pilot("analyze", str(SAMPLES / "demo" / "config"))
    assert (done.code, done.out.splitlines()[-1]) == (0, "4 objects are good, 0 errors, 0 warnings")


def test_each_fault_has_file_line_object_field_and_reason(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD + "---\n" + BAD)
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{tmp_path}/a.yaml:11: error: ServiceEntry/shop/ratings: spec.ports[0].number: "
        "expected a whole number, got the string 'many' [IST0106]",
        "1 object is good, 1 error, 0 warnings",
    ]


def test_a_field_without_effect_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(IDLE)
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 0
    assert f"{tmp_path}/a.yaml:6: warning: WasmPlugin/shop/extra: spec.verificationKey: has no effect" in done.out


def test_what_an_object_has_neither_steers_a_terminal_nor_forges_a_line(tmp_path: Path) -> None:
    name = '"q\\x1b]0;x\\x07\\nb.yaml:1: error: forged"'
    (tmp_path / "a.yaml").write_text(GOOD.replace("hosts: [reviews.test]", f"hosts: [{name}]"))
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert all(line.isprintable() for line in done.out.splitlines())
    assert [line.partition(":")[0] for line in done.out.splitlines()[:-1]] == [f"{tmp_path}/a.yaml"]
    assert r"q\x1b]0;x\x07\nb.yaml:1: error: forged" in done.out


def test_a_path_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = mesh_pilot("analyze", str(tmp_path / "nothing"))
    assert done.code == 1
    assert done.err == f"mesh-pilot: cannot read {tmp_path}/nothing: No such file or directory\n"


@pytest.mark.parametrize("sample", sorted({path.name for path in SAMPLES.iterdir() if path.is_dir()} - {"kubernetes"}))
def test_every_sample_is_good_as_it_stands(sample: str) -> None:
    done = mesh_pilot("analyze", str(SAMPLES / sample))
    assert done.code == 0
    assert " objects are good, 0 errors, 0 warnings" in done.out.splitlines()[-1]
    assert not done.out.startswith("0 objects")


def test_the_sample_for_a_cluster_has_only_what_a_folder_lacks() -> None:
    """Its objects are for an API server: of these only some are read from a folder."""
    done = mesh_pilot("analyze", str(SAMPLES / "kubernetes"))
    assert done.code == 0
    assert {code for line in done.out.splitlines() for code in re.findall(r"\[(\w+)\]$", line)} == {"MP0001", "MP0004"}
    assert " 0 errors, 2 warnings" in done.out.splitlines()[-1]


def test_a_folder_of_all_sorts_of_files_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My mesh\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "reviews.yaml").write_text(GOOD)
    (tmp_path / "mesh.yaml").write_text("accessLogFile: /dev/stdout\nconnectTimeout: soon\n")
    (tmp_path / "networks.yaml").write_text("networks: {}\n")
    (tmp_path / "bootstrap.json").write_text((SAMPLES / "grpc" / "bootstrap.json").read_text())
    (tmp_path / "proxy.yaml").write_text("pilot: 10.0.0.1:15012\nmetadata: {CLUSTER_ID: vms}\n")
    for name, extra in (("envoy.yaml", ()), ("delta.yaml", ("--delta",))):
        written = mesh_pilot("envoy-bootstrap", "--id", "web-1", "--ip", "10.1.1.1", *extra)
        (tmp_path / name).write_text(written.out)
    (tmp_path / "limits.yaml").write_text("domain: shop\ndescriptors: [{key: path}]\n")
    (tmp_path / "people.yaml").write_text("issuer: https://sso.test\nclientId: mesh-pilot\nroles: []\n")
    (tmp_path / "signer.yaml").write_text("# the CA\nkind: stepCA\naddress: https://ca\n")
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{tmp_path}/mesh.yaml:2: error: connectTimeout: 'soon' is not a duration; "
        "write a number and a unit, such as 5s, 250ms or 1h30m [MP0009]",
        f"{tmp_path}/bootstrap.json: note: passed over: a bootstrap of gRPC clients",
        f"{tmp_path}/delta.yaml: note: passed over: a bootstrap of Envoy",
        f"{tmp_path}/envoy.yaml: note: passed over: a bootstrap of Envoy",
        f"{tmp_path}/limits.yaml: note: passed over: configuration of a rate limit server",
        f"{tmp_path}/mesh.yaml: note: checked as MeshConfig; it goes to --mesh-config, "
        "not into a folder of --config-dir",
        f"{tmp_path}/networks.yaml: note: checked as MeshNetworks; it goes to --networks-config, "
        "not into a folder of --config-dir",
        f"{tmp_path}/people.yaml: note: passed over: people and roles of the web port",
        f"{tmp_path}/proxy.yaml: note: passed over: settings of mesh-pilot proxy",
        f"{tmp_path}/signer.yaml: note: passed over: the CA of --ca-signer, which discovery checks at its start",
        f"{tmp_path}: note: passed over, for neither YAML nor JSON: README.md",
        "1 object is good, 1 error, 0 warnings",
    ]


def test_what_is_no_settings_and_no_object_is_still_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("metadata: {name: reviews}\nspec: {hosts: [reviews.test]}\n")
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert f"{tmp_path}/a.yaml:1: error: apiVersion: is missing" in done.out


def test_a_file_and_standard_input_are_read_and_a_file_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    assert mesh_pilot("analyze", str(file), str(tmp_path)).out == "1 object is good, 0 errors, 0 warnings\n"
    done = mesh_pilot("analyze", "-", stdin=BAD)
    assert done.code == 1
    assert done.out.startswith("stdin:6: error: ServiceEntry/shop/ratings: spec.ports[0].number: ")


OTHERS = """\
apiVersion: network.istio.io/v1
kind: VirtualService
metadata: {name: a}
---
apiVersion: v1
kind: Service
metadata: {name: a}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: b}
"""


def test_objects_that_are_not_ours_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(OTHERS)
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{file}:1: error: apiVersion: there is no VirtualService in network.istio.io/v1; "
        "did you mean networking.istio.io/v1? [IST0106]",
        f"{file}:5: warning: Service of v1: ignored: Kubernetes' services are not read from files; "
        "write a ServiceEntry with its endpoints [MP0004]",
        f"{file}:9: note: ignored: Deployment of apps/v1 (2 of them, also at {file}:13)",
        f"{file}: note: read for the analysis only, and not served: 2 Deployment, 1 Service",
        "0 objects are good, 1 error, 1 warning, 2 ignored",
    ]


@pytest.mark.process
def test_only_a_terminal_that_wants_them_gets_colours(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BAD)
    assert "\x1b[31m" in on_terminal(80, "analyze", str(tmp_path))[0]
    assert "\x1b" not in "".join(on_terminal(80, "analyze", str(tmp_path), NO_COLOR="1"))
    assert "\x1b" not in mesh_pilot("analyze", str(tmp_path)).out


def test_json_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(OTHERS + "---\n" + GOOD + "---\n" + BAD)
    done = mesh_pilot("analyze", "-o", "json", str(tmp_path))
    found = json.loads(done.out)
    assert (done.code, found["objects"]) == (1, 1)
    assert found["errors"][1] == {
        "where": f"{tmp_path}/a.yaml:27",
        "object": "ServiceEntry/shop/ratings",
        "field": "spec.ports[0].number",
        "reason": "expected a whole number, got the string 'many'",
        "code": "IST0106",
        "level": "error",
        "fix": CODES["IST0106"].fix,
        "doc": "docs/analysis.md#ist0106",
    }
    assert [warning["object"] for warning in found["warnings"]] == ["Service of v1"]
    assert found["ignored"] == [
        {"apiVersion": "apps/v1", "kind": "Deployment", "where": [f"{tmp_path}/a.yaml:{line}" for line in (9, 13)]}
    ]
    assert [note["where"] for note in found["notes"]] == [f"{tmp_path}/a.yaml"]


def test_a_patch_that_can_not_be_applied_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("""\
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: wait, namespace: shop}
spec:
  configPatches:
  - applyTo: CLUSTER
    patch: {operation: MERGE, value: {connect_timeout: soon}}
""")
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 1
    assert f"{tmp_path}/a.yaml:6: error: EnvoyFilter/shop/wait: spec.configPatches[0]: " in done.out
