"""samples/kubernetes-signer as it stands, with a real API server: its commands are typed, but for those of kubectl.

What these do is done over the API, as kubectl is not among the programs of the tests.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.apiserver import ApiServer
from tests.support.csr_signer import PEM, signing
from tests.support.envoy import eventually
from tests.support.tutorial import environment, steps, terminal

pytestmark = [pytest.mark.slow, pytest.mark.process]

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "kubernetes-signer"
SIGNER = yaml.safe_load((SAMPLE / "signer.yaml").read_text())["signerName"]
TYPED_ELSEWHERE = "kubectl "


async def test_the_sample_is_as_it_says(
    apiserver: ApiServer, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (tmp_path / "samples").mkdir()
    shutil.copytree(SAMPLE, tmp_path / "samples" / "kubernetes-signer")
    tool = tmp_path / "bin" / "mesh-pilot"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mesh_pilot.cli "$@"\n')
    tool.chmod(0o755)
    grpc, http, monitoring = free_ports(3)
    listening = f"--grpc-addr 127.0.0.1:{grpc} --http-addr 127.0.0.1:{http} --monitoring-addr 127.0.0.1:{monitoring} "
    listening += "--secure-grpc-addr 127.0.0.1:0 --no-state"
    page = (SAMPLE / "README.md").read_text().replace("discovery ", f"discovery {listening} ")
    walked = list(steps(page.replace("8080/", f"{http}/")))
    objects = list(yaml.safe_load_all((SAMPLE / "rbac.yaml").read_text()))
    async with apiserver.namespace("istio-system") as namespace, signing(apiserver, SIGNER) as controller:
        roots = {"root-cert.pem": controller.root.certificate.public_bytes(PEM).decode()}
        await apiserver.apply(
            namespace.object("v1", "ServiceAccount", "mesh-pilot"),
            namespace.object("v1", "ConfigMap", "mesh-roots", data=roots),
            *objects,
        )
        token = await apiserver.account_token("istio-system", "mesh-pilot")
        try:
            async with terminal(tmp_path, environment(tmp_path / "bin", HOME=str(tmp_path))) as shell:
                typed = [step for step in walked if not step.command.startswith(TYPED_ELSEWHERE)]
                assert (len(typed), len(walked)) == (5, 10)
                await shell.walk(typed[:1])
                shutil.copy(apiserver.kubeconfig(token=token), tmp_path / "mymesh" / "account.kubeconfig")
                await shell.walk(typed[1:])

            async def is_gone() -> bool:
                return len(controller.seen) == 1 and controller.deleted == list(controller.seen)

            await eventually(is_gone, what="the request is deleted")
        finally:
            await apiserver.delete(*(each for each in objects if each["kind"].startswith("Cluster")))
