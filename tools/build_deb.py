"""Builds the Debian package from the checkout: ``python -m tools.build_deb``, which prints its path.

A virtual environment in ``/opt/mesh-pilot`` with the versions of ``requirements.lock``, the units of
``mesh-pilot proxy install`` and of ``samples/systemd``, man pages and completions. Uses dpkg-deb and no root. It is for
the release of Debian or Ubuntu that it is built on, whose Python it uses: the package depends on exactly that.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

from tools.release_parts import ROOT, build_python, changes, epoch, version

HOME = Path("/opt/mesh-pilot")
PYTHON = Path("/usr/bin/python3")
MAINTAINER = "The mesh-pilot authors <maintainers@mesh-pilot.invalid>"
SHARED = Path(__file__).with_name("debian")
"""Maintainer scripts, settings in /etc, copyright."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="the wheel to package; without it, one is built")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="folder of the package")
    arguments = parser.parse_args()
    missing = [program for program in ("dpkg-deb", str(PYTHON)) if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"no {' and no '.join(missing)}: build on the release of Debian that the package is for")
    print(build(arguments.into, arguments.wheel))
    return 0


def build(into: Path, wheel: Path | None = None) -> Path:
    """Write ``mesh-pilot_VERSION_ARCHITECTURE.deb`` into a folder and return its path."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        if wheel is None:
            _, wheel = build_python(Path(work))
        python = _install(tree, wheel)
        _documents(tree, Path(work))
        for file in sorted((SHARED / "etc").iterdir()):
            _write(tree / "etc/mesh-pilot" / file.name, file.read_bytes())
        architecture = _out("dpkg", "--print-architecture")
        _control(tree, python, architecture)
        package = into / f"mesh-pilot_{version()}_{architecture}.deb"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", tree, package]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return package


def _install(tree: Path, wheel: Path) -> str:
    """Lay out the virtual environment below ``tree``. Returns the version of its Python, such as 3.11."""
    python = _out(str(PYTHON), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    home = tree / HOME.relative_to("/")
    packages = home / f"lib/python{python}/site-packages"
    packages.mkdir(parents=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(PYTHON), "--target", str(packages)]
    subprocess.run([*uv, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
    # From a folder, as from an index: nothing tells afterwards where this machine had the wheel.
    own = ["--no-deps", "--no-index", "--find-links", wheel.parent, f"mesh-pilot=={version()}"]
    subprocess.run([*uv, *own, "--refresh-package", "mesh-pilot", "--reinstall-package", "mesh-pilot"], check=True)
    shutil.rmtree(packages / "bin")
    for scrap in (".lock", "CACHEDIR.TAG", ".gitignore"):
        (packages / scrap).unlink(missing_ok=True)
    for folder in list(packages.rglob("__pycache__")):
        shutil.rmtree(folder, ignore_errors=True)
    # Services cannot write here. The code does not depend on times of files, so that two builds are the same.
    compile_all = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    done = subprocess.run([PYTHON, *compile_all, "-s", str(tree), "-p", "/", packages], check=False)
    if done.returncode:
        print("some modules do not compile with this Python, see above", file=sys.stderr)
    _write(home / "pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin").mkdir()
    for name, target in ((f"python{python}", f"/usr/bin/python{python}"), ("python", f"python{python}")):
        (home / "bin" / name).symlink_to(target)
    script = f"#!{HOME}/bin/python\nimport sys\n\nfrom mesh_pilot.cli import main\n\nsys.exit(main())\n"
    _write(home / "bin/mesh-pilot", script.encode(), mode=0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/mesh-pilot").symlink_to(HOME / "bin/mesh-pilot")
    return python


def _documents(tree: Path, work: Path) -> None:
    """Units, man pages, completions and the documents of a Debian package."""
    packages = next((tree / HOME.relative_to("/") / "lib").glob("python*/site-packages"))

    def mesh_pilot(*arguments: str | Path) -> str:
        program = [str(PYTHON), "-B", "-m", "mesh_pilot.cli", *map(str, arguments)]
        return _out(*program, environment={"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]}) + "\n"

    units = work / "units"
    mesh_pilot("proxy", "install", "--program", HOME / "bin/mesh-pilot", "--dns", "--write", units)
    plane = ROOT / "samples/systemd/mesh-pilot.service"
    for unit in [*sorted((units / "etc/systemd/system").iterdir()), plane]:
        _write(tree / "usr/lib/systemd/system" / unit.name, unit.read_bytes())
    for file in sorted((units / "etc/sysusers.d").iterdir()):
        _write(tree / "usr/lib/sysusers.d" / file.name, file.read_bytes())

    mesh_pilot("man", "--into", work / "man")
    for page in sorted((work / "man").iterdir()):
        _write(tree / "usr/share/man/man1" / f"{page.name}.gz", _zipped(page.read_bytes()))
    for shell, path in (
        ("bash", "bash-completion/completions/mesh-pilot"),
        ("zsh", "zsh/vendor-completions/_mesh-pilot"),
        ("fish", "fish/vendor_completions.d/mesh-pilot.fish"),
    ):
        _write(tree / "usr/share" / path, mesh_pilot("completion", shell).encode())

    documents = tree / "usr/share/doc/mesh-pilot"
    _write(documents / "copyright", (SHARED / "copyright").read_bytes())
    _write(documents / "NEWS.gz", _zipped((ROOT / "CHANGELOG.md").read_bytes()))
    first = next(line for line in changes(version()).splitlines() if line and not line.startswith("#"))
    entry = f"mesh-pilot ({version()}) unstable; urgency=medium\n\n  * {first}\n    See NEWS.gz.\n\n"
    entry += f" -- {MAINTAINER}  {formatdate(epoch())}\n"
    _write(documents / "changelog.gz", _zipped(entry.encode()))


def _control(tree: Path, python: str, architecture: str) -> None:
    major, minor = python.split(".")
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    depends = [
        f"python3 (>= {python})",
        f"python3 (<< {major}.{int(minor) + 1}~)",
        f"libc6 (>= {_out('getconf', 'GNU_LIBC_VERSION').split()[1]})",
        "libgcc-s1",
        "libstdc++6",
        "ca-certificates",
        "systemd | systemd-standalone-sysusers | systemd-sysusers",
    ]
    fields = {
        "Package": "mesh-pilot",
        "Version": version(),
        "Architecture": architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(sum(path.stat().st_size for path in files) // 1024),
        "Depends": ", ".join(depends),
        "Recommends": "iproute2, iptables | nftables",
        "Suggests": "consul, envoy",
        "Section": "net",
        "Priority": "optional",
        "Homepage": _homepage(),
        "Description": "control plane for Envoy that reads the Istio API\n"
        " mesh-pilot programs fleets of Envoys on machines and Consul over xDS, from\n"
        " Istio's YAML. It brings the agent that runs Envoy on a machine, and its units.\n"
        " .\n"
        " Envoy itself is not part of it.",
    }
    control = tree / "DEBIAN"
    _write(control / "control", "".join(f"{name}: {value}\n" for name, value in fields.items()).encode())
    settings = [f"/{path.relative_to(tree)}\n" for path in files if path.is_relative_to(tree / "etc")]
    _write(control / "conffiles", "".join(settings).encode())
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files)
    _write(control / "md5sums", "".join(sums).encode())
    for name in ("postinst", "prerm", "postrm"):
        _write(control / name, (SHARED / name).read_bytes(), mode=0o755)


def _homepage() -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^Source = "(.*)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def _zipped(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _out(*command: str, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
