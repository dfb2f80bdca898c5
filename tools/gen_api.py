"""Regenerate `src/mesh_pilot/api/` from `proto/`, or check that it is up to date.

    python tools/gen_api.py            # what `tox -e proto` runs: delete and regenerate
    python tools/gen_api.py --check    # exit 1 and name the files that differ

Needs the `proto` extra: `betterproto2-compiler`, which brings the plugin and ruff, and `grpcio-tools`, which brings
`protoc`. The compiler formats its output with ruff; `--check` compares syntax trees, so that another version
of ruff, which breaks lines elsewhere, is not a difference.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
API = ROOT / "src" / "mesh_pilot" / "api"

PACKAGE = '''\
"""The Istio API, the Gateway API, the CA service and MCP as betterproto2 dataclasses.

Generated from `proto/` by `tox -e proto`; never edited. May import nothing of mesh_pilot.

A package of the proto files is a module: `istio.networking.v1alpha3.VirtualService` is
`mesh_pilot.api.istio.networking.v1alpha3.VirtualService`. Message fields that are absent are `None`, also the
wrappers (`BoolValue` is `bool | None`), durations are `timedelta`, timestamps aware `datetime`s, and members of a
oneof are `None` unless set. An empty message is falsy: ask `is not None`.
"""

from functools import lru_cache

import betterproto2

# The library asks for the hints of a whole class again for each of its fields: 60 ms at every start for MeshConfig.
betterproto2.Message._type_hints = classmethod(lru_cache(8)(betterproto2.Message._type_hints.__func__))
'''


DESCRIPTORS = "descriptors.pb"
"""The files of `proto/` as a FileDescriptorSet without comments, for gRPC reflection."""


def generate(into: Path, *, verbose: bool = False) -> None:
    """Run protoc with betterproto2's plugin on every file of `proto/`, writing the package to `into`."""
    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    plugin = Path(sys.executable).parent
    # In the project's root, because ruff takes line length and target version from its pyproject.toml.
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{PROTO}",
            f"--python_betterproto2_out={into}",
            "--python_betterproto2_opt=client_generation=async",
            "--python_betterproto2_opt=server_generation=async",
            *sources,
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{plugin}{os.pathsep}{os.environ.get('PATH', '')}"},
        check=True,
        stderr=None if verbose else subprocess.PIPE,
    )
    (into / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{PROTO}",
            f"--descriptor_set_out={into / DESCRIPTORS}",
            *sources,
        ],
        check=True,
        stderr=None if verbose else subprocess.PIPE,
    )


def differences(expected: Path, actual: Path) -> list[str]:
    """The files of two generated packages that are missing, left over or not the same program."""
    names = {path.relative_to(expected) for path in expected.rglob("*") if path.is_file()}
    present = {path.relative_to(actual) for path in actual.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    found = [f"missing: {name}" for name in sorted(names - present)]
    found += [f"left over: {name}" for name in sorted(present - names)]
    for name in sorted(names & present):
        same = _tree if name.suffix == ".py" else Path.read_bytes
        if same(expected / name) != same(actual / name):
            found.append(f"differs: {name}")
    return found


def _tree(path: Path) -> str:
    """The program without what differs between compilers that generate the same: comments, layout, their version."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith("_COMPILER_VERSION = ")]
    return ast.dump(tree)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("-v", "--verbose", action="store_true", help="let the compiler say what it writes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "api"
        fresh.mkdir()
        try:
            generate(fresh, verbose=arguments.verbose)
        except subprocess.CalledProcessError as error:
            print((error.stderr or b"").decode(errors="replace"), file=sys.stderr)
            print("protoc failed; is the `proto` extra installed?", file=sys.stderr)
            return 2
        if arguments.check:
            found = differences(fresh, API)
            print("\n".join([*found, "run: tox -e proto"]) if found else "api/ is what proto/ generates")
            return 1 if found else 0
        shutil.rmtree(API, ignore_errors=True)
        shutil.copytree(fresh, API)
    return 0


if __name__ == "__main__":
    sys.exit(main())
