"""Makes the agent's table of the fields of Istio's ProxyConfig, and of Envoy's Bootstrap, from the generated messages.

    python -m tools.gen_proxy_config     # writes src/mesh_pilot/agent/bootstrap/proxy_config.json

The agent reads the table in place of the messages, which would cost it 8 MB. A test sees to it that the file is what
this would write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import betterproto2
from envoy.config.bootstrap.v3 import bootstrap_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of

TARGET = Path(__file__).parents[1] / "src/mesh_pilot/agent/bootstrap/proxy_config.json"

OPAQUE = {
    "sds",
    "gatewayTopology",
    "readinessProbe",
    "image",
    "privateKeyProvider",
    "proxyHeaders",
    "stackdriver",
    "customTags",
    "openCensusAgent",
}
"""Objects that the agent takes as they are written: only the control plane reads them, or whoever makes the probe."""
DECODED = {"readinessProbe"}
"""Those of them that the agent reads when the control plane sends them."""
_KINDS = {"string": "text", "int32": "int", "uint32": "int", "double": "double", "bool": "bool"}


def table(message: type[betterproto2.Message]) -> dict[str, Any]:
    """The fields of a message by their JSON names."""
    return {field.json_name: dict(_entry(field)) for field in descriptor_of(message).fields}


def _entry(field: FieldDescriptor) -> dict[str, Any]:
    entry: dict[str, Any] = {"number": field.number}
    if field.json_name in OPAQUE:
        entry["kind"] = "opaque"
    elif field.wellknown is not None:
        entry["kind"] = "duration"
    elif field.value is not None:
        entry["kind"] = "texts"
    elif field.enum is not None:
        # Those from 0 on: a lone 1000 is the INHERIT of objects that the agent does not see.
        entry |= {"kind": "name", "names": [str(m.name) for at, m in enumerate(field.enum) if m.value == at]}
    elif field.message is not None:
        entry["kind"] = "object"
    else:
        entry["kind"] = _KINDS[field.proto_type]
    if field.wrapper:
        entry["wrapped"] = True
    if field.repeated:
        entry["repeated"] = True
    if field.group:
        entry["oneof"] = field.group
    if field.message is not None and (field.json_name not in OPAQUE or field.json_name in DECODED):
        entry["fields"] = table(field.message)
    return entry


def text() -> str:
    """The file's content."""
    names = json.dumps([field.name for field in bootstrap_pb2.Bootstrap.DESCRIPTOR.fields])
    fields = ",\n".join(f'"{name}": {json.dumps(entry)}' for name, entry in table(mesh.ProxyConfig).items())
    return f'{{"Bootstrap": {names},\n"ProxyConfig": {{\n{fields}\n}}}}\n'


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
