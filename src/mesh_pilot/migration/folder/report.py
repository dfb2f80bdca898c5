"""The report of a migration: as Markdown for the folder, as lines for a terminal, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.migration.base.record import MadeObject, Migration, Untaken
from mesh_pilot.model.counts import counted

# -- the files of a migration: one object a file, the settings, and credentials


CONFIG, SECRETS = "config", "secrets"
MESH_FILE, NETWORKS_FILE, REPORT_FILE = "mesh.yaml", "networks.yaml", "MIGRATION.md"

CLUSTER_SCOPED = "_cluster"
"""The folder of objects without a namespace; no namespace is called so."""

_GATEWAY_API = "gateway.networking.k8s.io"
_LONGEST = 200


def files_of(migration: Migration) -> Mapping[str, bytes]:
    """The content of each file but the report, by its path in the folder, sorted."""
    found: dict[str, bytes] = {}
    for made in migration.objects:
        found[path_of(made)] = yaml_text([made.document]).encode()
    if migration.mesh is not None:
        found[MESH_FILE] = yaml_text([migration.mesh]).encode()
    if migration.networks is not None:
        found[NETWORKS_FILE] = yaml_text([migration.networks]).encode()
    for credential in migration.credentials:
        for part, value in credential.parts.items():
            found[f"{SECRETS}/{credential.namespace}/{credential.name}/{part}"] = value
    return dict(sorted(found.items()))


def path_of(made: MadeObject) -> str:
    """The file of an object: ``config/shop/VirtualService-reviews.yaml``."""
    kind, namespace, name = made.key
    kind, _, group = kind.partition(".")
    if group == _GATEWAY_API and kind == "Gateway":
        kind = "KubernetesGateway"  # two groups have a Gateway
    short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{len(name)}"
    return f"{CONFIG}/{namespace or CLUSTER_SCOPED}/{kind}-{short}.yaml"


def is_secret(path: str) -> bool:
    """True for files that only their owner may read."""
    return path.startswith(f"{SECRETS}/")


_SHOWN_ALIKE = 3
"""Lines for a terminal of objects that are not taken for the same reason."""
_SHOWN_CHANGES = 20


@attrs.frozen
class FolderOutcome:
    """The outcome for the files of a folder."""

    written: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Files of others, or changed since, that were left as they are."""
    findings: tuple[str, ...] = ()
    """Lines of an analysis of the result."""


def as_markdown(migration: Migration, outcome: FolderOutcome) -> str:
    """The text of ``MIGRATION.md``; the same for the same result."""
    return "\n".join(_markdown(migration, outcome)) + "\n"


def as_json(migration: Migration, outcome: FolderOutcome) -> dict[str, Any]:
    """The same for programs."""
    return {
        "from": migration.system,
        "taken": dict(migration.taken),
        "written": list(outcome.written),
        "kept": list(outcome.kept),
        "untaken": [_row(each) for each in migration.untaken],
        "changes": [{"object": each.object, "text": each.text} for each in migration.changes],
        "findings": list(outcome.findings),
    }


def as_lines(migration: Migration, outcome: FolderOutcome, folder: str, *, is_dry: bool) -> Iterator[str]:
    """The lines for a terminal."""
    would = "would be written" if is_dry else "written"
    yield f"taken from {migration.system}: {_counted(migration.taken) or 'nothing'}"
    yield f"{would} to {folder}: {counted(len(outcome.written), 'file')}"
    for path in outcome.kept:
        yield f"kept, as it is not of this command or was changed since: {folder}/{path}"
    serious = needed(migration)
    if serious:
        yield f"not taken: {len(serious)}"
        yield from (f"  {line}" for line in _grouped(serious))
    if needless := _needless(migration):
        yield f"left out, for nothing of the mesh is in them: {_counted(needless)}"
    if migration.changes:
        yield f"said otherwise: {len(migration.changes)}"
        yield from (f"  {each.object}: {each.text}" for each in migration.changes[:_SHOWN_CHANGES])
        if len(migration.changes) > _SHOWN_CHANGES:
            yield f"  and {len(migration.changes) - _SHOWN_CHANGES} more"
    if outcome.findings:
        yield "analysis of the result:"
        yield from (f"  {line}" for line in outcome.findings)


def needed(migration: Migration) -> list[Untaken]:
    """The untaken things, without those that no mesh needs."""
    return [each for each in migration.untaken if not each.is_needless]


def _needless(migration: Migration) -> Mapping[str, int]:
    kinds = (each.object.partition("/")[0] or "others" for each in migration.untaken if each.is_needless)
    return dict(sorted(Counter(kinds).items()))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _grouped(untaken: Iterable[Untaken]) -> Iterator[str]:
    """The lines; of many with the same reason the first ones."""
    seen: Counter[tuple[str, str, str]] = Counter()
    lines: list[tuple[tuple[str, str, str], str]] = []
    for each in untaken:
        alike = (each.object.partition("/")[0], each.reason, each.do)
        seen[alike] += 1
        lines.append((alike, str(each)))
    shown: Counter[tuple[str, str, str]] = Counter()
    for alike, line in lines:
        shown[alike] += 1
        if shown[alike] <= _SHOWN_ALIKE:
            more = seen[alike] - _SHOWN_ALIKE
            last = shown[alike] == _SHOWN_ALIKE and more > 0
            yield f"{line} (and {more} more for the same reason)" if last else line


def _row(each: Untaken) -> dict[str, Any]:
    values = {
        "where": each.where,
        "object": each.object,
        "field": each.field,
        "reason": each.reason,
        "do": each.do,
        "needless": each.is_needless,
    }
    return {name: value for name, value in values.items() if value not in ("", False)}


def _markdown(migration: Migration, outcome: FolderOutcome) -> Iterator[str]:
    yield f"# Migration from {migration.system}"
    yield ""
    yield "Written by `mesh-pilot migrate`; docs/migrate.md of mesh-pilot explains it."
    yield ""
    yield "## Start"
    yield ""
    yield f"    {start_command(migration)}"
    yield ""
    yield "## Taken"
    yield ""
    yield from _table(("kind", "objects"), [(kind, str(count)) for kind, count in migration.taken.items()])
    yield "## Written"
    yield ""
    written = Counter(made.document["kind"] for made in migration.objects)
    yield from _table(("kind", "objects"), [(kind, str(count)) for kind, count in sorted(written.items())])
    if outcome.kept:
        yield "Kept, as they are not of this command or were changed since:"
        yield ""
        yield from (f"- {_cell(path)}" for path in outcome.kept)
        yield ""
    yield "## Not taken"
    yield ""
    rows = [(each.where, each.object, each.field, each.reason, each.do) for each in needed(migration)]
    yield from _table(("place", "object", "field", "reason", "what to do"), rows)
    yield "## Said otherwise"
    yield ""
    yield from _table(("object", "change"), [(each.object, each.text) for each in migration.changes])
    yield "## Left out"
    yield ""
    yield "Nothing of the mesh is in these."
    yield ""
    rest = [(each.where, each.object, each.reason) for each in migration.untaken if each.is_needless]
    yield from _table(("place", "object", "reason"), rest)
    if outcome.findings:
        yield "## Findings"
        yield ""
        yield "What `mesh-pilot analyze` finds in the result."
        yield ""
        yield from (f"- {_cell(line)}" for line in outcome.findings)
        yield ""


def start_command(migration: Migration) -> str:
    """The command that serves the result, run in its folder."""
    parts = ["mesh-pilot discovery", f"--config-dir {CONFIG}"]
    found = files_of(migration)
    parts += [f"--mesh-config {MESH_FILE}"] if MESH_FILE in found else []
    parts += [f"--networks-config {NETWORKS_FILE}"] if NETWORKS_FILE in found else []
    has_services = any(made.document["kind"] == "ServiceEntry" and "service/" in str(made.made_from)
                       for made in migration.objects)  # fmt: skip
    parts += ["--consul-server-url http://127.0.0.1:8500"] if migration.system == "consul" and not has_services else []
    parts += [f"--secrets-dir {SECRETS}"] if migration.credentials else []
    return " ".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        yield "Nothing."
        yield ""
        return
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(text: str) -> str:
    """The string on one line, in which nothing is Markdown."""
    line = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\|`*_<>[]" else c if c.isprintable() else "?" for c in line)
