"""``mesh-pilot bug-report``: one archive with what somebody else needs to understand a control plane's trouble."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.model.counts import counted

OBJECTS = 20_000
"""Objects in a report at most."""

REVISIONS = 50

PAGES = (
    ("status.json", "/status"),
    ("process.json", "/process"),
    ("sources.json", "/sources"),
    ("proxies.json", "/proxies"),
    ("rejections.json", "/rejections"),
    ("logs.json", "/logs"),
)
"""Files of a report, and the pages of the API that they come from."""

TEXTS = (("metrics.txt", "/metrics"), ("ready.txt", "/ready?verbose"), ("statistics.json", "/debug/statistics"))

LISTS = (("objects.json", "/debug/configz"), ("services.json", "/debug/registryz"), ("streams.json", "/debug/adsz"))

README = """\
A report of mesh-pilot, made {made} by mesh-pilot {version} on Python {python}.
Control plane: {plane}

Private keys, tokens and passwords were blanked. Names of hosts, services and proxies, addresses and certificates are
in it: look through it before you give it away.

{files}
"""


@click.command(
    "bug-report",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot bug-report",
        "mesh-pilot bug-report --proxies 'web-*' --into report.tar.gz",
    ),
)
@gives_orders
@click.option("--proxies", default="*", show_default=True, help="Dumps of proxies of this name or pattern.")
@click.option("--dumps", type=click.IntRange(0, 1000), default=5, show_default=True, help="Dumps at most.")
@click.option("--into", type=click.Path(path_type=Path), help="The archive.  [default: mesh-pilot-report-TIME.tar.gz]")
def command(*, plane: PlaneClient, proxies: str, dumps: int, into: Path | None) -> int:
    """Collect what is needed to understand a trouble in one archive: status, arguments, objects, proxies and what they
    refused, dumps of some of them, log levels, metrics, the latest revisions.

    Keys, tokens and passwords are blanked. What is not available is named in errors.txt; the arguments need the role
    operate. Read it with tar xzf; the dumps in it with mesh-pilot proxy-config --file.

    Exits with 0, or 1 if the control plane does not answer, or the archive cannot be written.
    """
    from mesh_pilot import __version__

    made = datetime.now(UTC)
    path = into or Path(f"mesh-pilot-report-{made:%Y%m%d-%H%M%S}.tar.gz")
    if path.is_dir():
        raise click.ClickException(f"{path}: is a folder; --into names the archive")
    plane.get("/status")
    files: dict[str, str] = {}
    errors: list[str] = []
    for name, content in _parts(plane, proxies, dumps):
        try:
            files[name] = content()
        except click.ClickException as error:
            errors.append(f"{name}: {error.format_message()}")
        except Exception as error:  # one part's error hides no other part
            errors.append(f"{name}: {type(error).__name__}: {error}")
    files["errors.txt"] = "".join(f"{error}\n" for error in errors)
    listed = "\n".join(f"  {name}" for name in files)
    files["README.txt"] = README.format(
        made=made.isoformat(timespec="seconds"),
        version=__version__,
        python=f"{platform.python_version()}, {platform.platform()}",
        plane=plane.address,
        files=listed,
    )
    try:
        _write(path, files)
    except OSError as error:
        raise click.ClickException(f"{path}: can't be written: {error.strerror}") from None
    for each in errors:
        click.echo(f"mesh-pilot: {each}", err=True)
    click.echo(f"{path}: {counted(len(files), 'file')}, {path.stat().st_size:,} bytes")
    return 0


def _parts(plane: PlaneClient, proxies: str, dumps: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """The files of a report, and how each is made."""
    for name, path in PAGES:
        yield name, partial(_page, plane, path)
    yield "history.json", partial(_page, plane, "/history", limit=REVISIONS)
    for name, path in LISTS:
        yield name, partial(_list, plane, path)
    for name, path in TEXTS:
        yield name, partial(_clean, plane, path)
    taken: set[str] = set()
    for proxy in _proxies(plane, proxies)[:dumps]:
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "_" for c in proxy)
        while name in taken:
            name += "_"
        taken.add(name)
        yield f"dumps/{name}.json", partial(_page, plane, f"/proxies/{quote(proxy, safe='')}/config_dump")


def _proxies(plane: PlaneClient, pattern: str) -> list[str]:
    """The names of proxies; those that refuse something come first."""
    try:
        entries = plane.get("/proxies")
    except click.ClickException:
        return []  # the file of the proxies tells why
    found = [
        entry
        for entry in entries
        if any(fnmatchcase(name, pattern) for name in (entry["proxy"], _short(entry["proxy"])))
    ]
    found.sort(key=lambda entry: ("NACK" not in entry["status"].values(), entry["proxy"]))
    return list(dict.fromkeys(str(entry["proxy"]) for entry in found))


def _short(proxy: str) -> str:
    return proxy.partition(".")[0]


def _text(plane: PlaneClient, path: str) -> str:
    status, text = plane.request("GET", path)
    if status not in (200, 503):
        raise click.ClickException(f"{path} answers {status}: {text.strip().partition(chr(10))[0][:200]}")
    return text


def _page(plane: PlaneClient, path: str, **query: Any) -> str:
    return _json(plane.get(path, **query))


def _list(plane: PlaneClient, path: str) -> str:
    found = json.loads(_text(plane, path))
    return _json(found[:OBJECTS] if isinstance(found, list) else found)


def _clean(plane: PlaneClient, path: str) -> str:
    from mesh_pilot.model.redaction import redacted

    text = _text(plane, path)
    try:
        return _json(json.loads(text))
    except ValueError:
        return str(redacted(text))


def _json(value: Any) -> str:
    from mesh_pilot.model.redaction import redacted

    return json.dumps(redacted(value), indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, files: dict[str, str]) -> None:
    """Write the archive whole or not at all, for its owner alone."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", suffix=".part", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in files.items():
                data = text.encode("utf-8", errors="replace")
                entry = tarfile.TarInfo(f"mesh-pilot-report/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
