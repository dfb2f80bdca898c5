"""samples/aws-pca as it stands, walked command by command; the AWS that is asked is the double."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mesh_pilot.app.signers import named_ca
from mesh_pilot.identity.signers.aws_pca.ca import AwsPca
from tests.identity.signers.fake_authority import Root
from tests.support.aws_pca_double import ARN, KEY_ID, SECRET_KEY, AwsPcaDouble, serving
from tests.support.tutorial import environment, steps, terminal

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "aws-pca"


def test_the_policy_allows_what_is_asked_for_with_the_template_of_the_file() -> None:
    ca = named_ca(SAMPLE / "signer.yaml").ca
    assert isinstance(ca, AwsPca)
    issuing, reading = json.loads((SAMPLE / "iam-policy.json").read_text())["Statement"]
    assert {issuing["Action"], *reading["Action"]} == AwsPcaDouble().allowed
    assert issuing["Condition"]["StringEquals"]["acm-pca:TemplateArn"] == ca.settings.template_arn
    assert issuing["Resource"] == reading["Resource"] == ca.settings.arn == ARN


@pytest.mark.slow
@pytest.mark.process
async def test_the_sample_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    double = AwsPcaDouble(now=lambda: datetime.now(UTC))
    root = Root("mesh root")
    double.issuers, double.chain = [Root("mesh issuing", root)], [root]
    roots = tmp_path / "chain.pem"
    roots.write_bytes(double.issuers[0].pem + root.pem)
    tools = {
        "mesh-pilot": f'exec {shlex.quote(sys.executable)} -m mesh_pilot.cli "$@"',
        "aws": f"cat {roots}",
        "pip": "true",
    }
    (tmp_path / "bin").mkdir()
    for name, does in tools.items():
        tool = tmp_path / "bin" / name
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    (tmp_path / "samples").mkdir()
    shutil.copytree(SAMPLE, tmp_path / "samples" / "aws-pca")
    grpc, http, monitoring, secure = free_ports(4)
    listening = f"--grpc-addr 127.0.0.1:{grpc} --http-addr 127.0.0.1:{http} --monitoring-addr 127.0.0.1:{monitoring} "
    listening += f"--secure-grpc-addr 127.0.0.1:{secure} --no-state"
    page = (SAMPLE / "README.md").read_text()
    page = page.replace("discovery ", f"discovery {listening} ").replace("8080/", f"{http}/")
    page = re.sub(r"127\.0\.0\.1:15012", f"127.0.0.1:{secure}", page)
    async with serving(double) as port:
        variables = environment(
            tmp_path / "bin",
            AWS_ENDPOINT_URL_ACM_PCA=f"http://127.0.0.1:{port}",
            AWS_ACCESS_KEY_ID=KEY_ID,
            AWS_SECRET_ACCESS_KEY=SECRET_KEY,
            HOME=str(tmp_path),
        )
        async with terminal(tmp_path, variables) as shell:
            walked = list(steps(page))
            assert len(walked) == 9
            await shell.walk(walked)
    assert double.asked.count("IssueCertificate") >= 2, "this server's certificate, and the workload's"
