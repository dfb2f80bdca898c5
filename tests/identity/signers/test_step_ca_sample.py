"""The sample of step-ca, walked as its README says, but for ``step``, which makes the CA, and for ports."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import trio

from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.authority.material import joined
from tests.support.command import mesh_pilot
from tests.support.planes import running_plane
from tests.support.step_ca import PASSWORD, step_ca

SAMPLE = Path(__file__).resolve().parents[3] / "samples" / "step-ca"


def commands() -> dict[str, list[str]]:
    """The commands of mesh-pilot in the README, by the first word."""
    lines = [line.strip() for line in (SAMPLE / "README.md").read_text().splitlines() if line.startswith("    mesh")]
    return {words[1]: words[2:] for words in map(shlex.split, lines)}


@pytest.mark.process
async def test_the_sample_for_step_ca_as_its_readme_walks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "sample"
    shutil.copytree(SAMPLE, here)
    monkeypatch.chdir(here)
    walk = commands()
    assert walk["discovery"] == shlex.split("--config-dir config --ca-signer signer.yaml --token-dir tokens &")
    async with step_ca(tmp_path) as ca:
        (here / "password").write_text(PASSWORD + "\n")
        (here / "root_ca.crt").write_bytes(joined([each.certificate for each in ca.roots]))
        named = (here / "signer.yaml").read_text()
        assert named.count("localhost:9000") == 1
        (here / "signer.yaml").write_text(named.replace("localhost:9000", f"localhost:{ca.port}"))
        async with running_plane(
            here / "config", ca_signer=here / "signer.yaml", join_tokens=JoinTokenSettings(here / "tokens")
        ) as plane:
            create, to = " ".join(walk["token"]).split(" > ")
            done = await trio.to_thread.run_sync(mesh_pilot, "token", *create.split())
            assert done.code == 0, done.err
            (here / to).write_text(done.out)
            for _ in range(2):  # the second time the certificate proves who asks
                pilot = plane.addresses.secure_grpc
                done = await trio.to_thread.run_sync(mesh_pilot, "certificate", *walk["certificate"], "--pilot", pilot)
                assert "web/cert-chain.pem is spiffe://cluster.local/ns/shop/sa/web until" in done.out, done.err
                (here / to).write_text("used up")
