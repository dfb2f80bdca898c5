"""The agent of an injected Pod, as Kubernetes would start it: its arguments, variables and files, on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from click.testing import CliRunner

from mesh_pilot.agent.settings import AgentSettings
from mesh_pilot.cli.proxy import command as proxy
from mesh_pilot.cli.proxy import pod_info
from mesh_pilot.cli.proxy import run as run_module
from mesh_pilot.cli.proxy.iptables import command as iptables
from mesh_pilot.cli.proxy.istio_names import ANSWERED, HONOURED, SPECIAL

NODE, POD_IP, HOST_IP, CPUS = "node-1", "10.1.2.3", "10.9.9.9", "2"


def container_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    spec = pod["spec"]
    (found,) = (c for c in [*spec.get("initContainers", ()), *spec["containers"]] if c["name"] == name)
    return dict(found)


def environment_of(pod: Mapping[str, Any], name: str = "istio-proxy") -> dict[str, str]:
    """The variables of a container, with what Kubernetes puts in for references."""
    fields = {
        "metadata.name": pod["metadata"].get("name", "pod-1"),
        "metadata.namespace": pod["metadata"].get("namespace", "default"),
        "status.podIP": POD_IP,
        "status.hostIP": HOST_IP,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "spec.nodeName": NODE,
    }
    found = {}
    for variable in container_of(pod, name).get("env", ()):
        match variable.get("valueFrom"):
            case {"fieldRef": {"fieldPath": path}}:
                found[variable["name"]] = fields[path]
            case {"resourceFieldRef": {"resource": "limits.cpu"}}:
                found[variable["name"]] = CPUS
            case _:
                found[variable["name"]] = variable.get("value", "")
    return found


def agent_settings_of(pod: Mapping[str, Any], folder: Path) -> AgentSettings:
    """The settings of the agent, by its own command line. Its folders are below ``folder``."""
    arguments = []
    info = folder / "pod"
    info.mkdir(exist_ok=True)
    (folder / "root-cert.pem").write_text("PEM")
    for name in ("labels", "annotations"):
        lines = [f"{key}={json.dumps(value)}\n" for key, value in pod["metadata"].get(name, {}).items()]
        (info / name).write_text("".join(lines))
    mounted = {
        "/var/run/secrets/istio": folder,
        "/var/run/secrets/tokens": folder,
        "/var/lib/istio/data": folder / "state",
        "/etc/istio/proxy": folder / "run",
    }
    for argument in container_of(pod, "istio-proxy")["args"]:
        for inside, outside in mounted.items():
            argument = argument.replace(inside, str(outside))
        arguments.append(argument)
    taken: list[AgentSettings] = []
    result = _run(proxy, arguments[1:], environment_of(pod), info, taken)
    assert result.exception is None, (result.exception, result.output)
    return taken.pop()


def check_rules_of(pod: Mapping[str, Any]) -> str:
    """The rules that the init container would put in force."""
    arguments = container_of(pod, "istio-init")["args"]
    assert arguments[:2] == ["iptables", "apply"]
    with patch("mesh_pilot.cli.proxy.iptables._dns_servers", lambda *_, **__: ()):
        result = CliRunner().invoke(
            iptables, ["show", "--backend", "nft", *arguments[2:]], env=_clean(environment_of(pod, "istio-init"))
        )
    assert result.exception is None, (result.exception, result.output)
    return result.output


def _clean(env: Mapping[str, str]) -> dict[str, str | None]:
    """The variables, and none of this machine's about an agent."""
    ours = ("MESH_PILOT_", "ISTIO_", "POD_")
    names = [n for n in os.environ if n.startswith(ours) or n in (*HONOURED, *ANSWERED, *SPECIAL)]
    return {**dict.fromkeys(names), **env}


def _run(command: click.Command, arguments: list[str], env: Mapping[str, str], info: Path, taken: list[Any]) -> Any:
    with (
        patch.object(run_module, "run_agent_of", taken.append),
        patch.object(run_module, "prepare_process", lambda: None),
        patch.object(pod_info, "FOLDER", info),
    ):
        return CliRunner().invoke(command, arguments, env=_clean(env), standalone_mode=False)
