"""The environment of Istio's agent: which variables set what, and which have no effect here, and why.

The names are data, ``istio_names.json``: YAML would cost the agent memory that it otherwise never needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

META, META_JSON = "ISTIO_META_", "ISTIO_METAJSON_"
"""Variables of which node metadata are made: ``ISTIO_META_X`` is ``X``; the others are objects, merged."""

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

HONOURED: Mapping[str, str] = _DATA["honoured"]
"""Variables, each with the setting that it is. The last one counts where two are the same."""
ANSWERED: Mapping[str, str] = {name: reason for reason, names in _DATA["answered"].items() for name in names}
"""Variables without effect, and why, or what replaces them."""
SPECIAL: Mapping[str, str] = _DATA["special"]
"""Variables that set more than one setting."""

CPU_LIMIT = "ISTIO_CPU_LIMIT"


@attrs.frozen
class Remark:
    """A line for the log about a variable, or a setting, that has no effect."""

    event: str
    fields: Mapping[str, object]


@attrs.frozen
class FromIstio:
    """Settings that the environment has: texts of settings by name, with the variable; metadata; remarks."""

    settings: Mapping[str, tuple[str, str]]
    metadata: Mapping[str, Any]
    labels: Mapping[str, str]
    proxy_config: str
    remarks: tuple[Remark, ...]


def read_environment(environ: Mapping[str, str]) -> FromIstio:
    """Settings by Istio's variables. An empty variable is as one that is not set."""
    given = {name: text for name, text in sorted(environ.items()) if text}
    settings = {setting: (variable, given[variable]) for variable, setting in HONOURED.items() if variable in given}
    remarks = [
        Remark("variable of istio has no effect", {"variable": name, "reason": ANSWERED[name]})
        for name in given
        if name in ANSWERED
    ]
    settings |= _listen(given) | _provided(given)
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    remarks += _metadata(given, metadata, labels)
    return FromIstio(settings, metadata, labels, given.get("PROXY_CONFIG", ""), tuple(remarks))


def _listen(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    name = "DNS_PROXY_ADDR"
    host, _, port = given.get(name, "").rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    return {"dns-listen": (name, host), "dns-port": (name, port)} if port else {}


def _provided(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The certificate of a folder, once there is one: the first time Istio's agent uses the token."""
    name = "PROV_CERT"
    files = {"cert-chain": "cert-chain.pem", "key": "key.pem", "root-cert": "root-cert.pem"}
    paths = {setting: Path(given.get(name, "")) / file for setting, file in files.items()}
    is_there = name in given and all(path.exists() for path in paths.values())
    return {setting: (name, str(path)) for setting, path in paths.items()} if is_there else {}


def _metadata(given: Mapping[str, str], metadata: dict[str, Any], labels: dict[str, str]) -> Iterator[Remark]:
    for name, text in given.items():
        if name in HONOURED:
            continue  # the setting puts it there, wherever that comes from
        if name.startswith(META):
            metadata[name.removeprefix(META)] = text
        elif name.startswith(META_JSON):
            try:
                values = json.loads(text)
            except ValueError:
                values = None
            if not isinstance(values, dict):
                yield Remark("variable of istio is refused", {"variable": name, "reason": "it is not JSON object"})
            elif name == f"{META_JSON}LABELS":
                labels.update({key: str(value) for key, value in values.items()})
            else:
                metadata.update(values)
