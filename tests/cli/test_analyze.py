"""``mesh-pilot analyze`` on folders, run as its users run it."""

from __future__ import annotations

from pathlib import Path

from support.command import mesh_pilot

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
UNUSED = """\
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: extra, namespace: shop}
spec: {selector: {matchLabels: {app: web}}}
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
        "expected a whole number, got the string 'many'",
        "1 objects are good, 1 errors, 0 warnings",
    ]


def test_a_kind_without_effect_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(UNUSED)
    done = mesh_pilot("analyze", str(tmp_path))
    assert done.code == 0
    assert f"{tmp_path}/a.yaml:1: warning: ProxyConfig/shop/extra: this kind" in done.out


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = mesh_pilot("analyze", str(tmp_path / "nothing"))
    assert done.code == 1
    assert done.err == f"mesh-pilot: cannot read the folder {tmp_path}/nothing: No such file or directory\n"


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
    assert f"{tmp_path}/a.yaml:1: error: EnvoyFilter/shop/wait: spec.configPatches[0]: " in done.out
