"""Istio's agent while the root is replaced: it knows the old one from the file that ``XDS_ROOT_CA`` names.

Its requests are the recorded ones. After ``switch`` it reconnects, and has certificates signed that its peers verify by
the old root. After ``finish`` it can't connect until its file has the new root; the commands say so before.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.resource import PROXY_CONFIG
from tests.identity.authority.verifiers import VERIFIERS
from tests.registration.test_istios_agent import SotwStream, enrolled, in_thread, join_token, replay_delta
from tests.registration.test_registered_workloads import GROUP, QUICK, SERVICE, config
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import running_plane

pytestmark = [pytest.mark.plane, pytest.mark.process]


async def rotate(plane: ControlPlane, step: str, *more: str, code: int = 0) -> Done:
    """A step, once the plane has read the files of the one before."""
    arguments = ("ca", "rotate", step, "--ca-dir", str(plane.settings.ca_dir), *more)
    found = await in_thread(lambda: mesh_pilot(*arguments))
    assert found.code == code, (found.out, found.err)
    authority = plane.state.callers.authority
    assert authority is not None and plane.settings.ca_dir is not None
    roots = (plane.settings.ca_dir / "root-cert.pem").read_bytes()
    signing = (plane.settings.ca_dir / "ca-cert.pem").read_bytes()

    def has_read() -> bool:
        return (b"".join(plane.state.trust.own().roots), authority.material.chain.endswith(signing)) == (roots, True)

    await eventually(has_read, what=f"the files of {step} are read")
    return found


async def test_it_reconnects_with_the_old_root_alone_until_finish(tmp_path: Path) -> None:
    folder, ca = config(tmp_path / "config", SERVICE, GROUP), tmp_path / "ca"
    with trio.fail_after(90):
        async with running_plane(folder, trust_local=True, registration=QUICK, ca_dir=ca) as plane:
            pilot = ("--pilot", plane.addresses.http)
            old = (ca / "root-cert.pem").read_bytes()
            agent = await enrolled(plane, ca)
            with agent.channel() as channel:
                stream = SotwStream(channel)
                await in_thread(stream.begin)
                await rotate(plane, "begin")
                while (await in_thread(stream.answer)).type_url != PROXY_CONFIG:  # which has both roots
                    pass

                async def accepted() -> bool:
                    return not (await in_thread(lambda: mesh_pilot("ca", "status", *where, *pilot))).out.count("wait:")

                where = ("--ca-dir", str(ca))
                await eventually(accepted, what="it has accepted both roots")
                said = (await rotate(plane, "switch", *pilot)).out
                assert "connected since before the rotation: vm-1.shop" in said
                assert "before finish, replace the roots of clients that know them from a file (XDS_ROOT_CA" in said
                refused = await rotate(plane, "finish", *pilot, code=1)
                assert "connected since before the rotation with a root from a file: vm-1.shop" in refused.err
                stream.end()

            # It knows the old root alone, and has a certificate of it, then one of the new root.
            assert agent.root == old
            await in_thread(replay_delta, agent)
            chain = await in_thread(agent.enrol)
            assert chain[-1].count("BEGIN") == 2, "the roots, which it takes for its workload, are the last"
            for verify in VERIFIERS.values():
                verify("".join(chain[:-1]).encode(), old)
            await in_thread(replay_delta, agent)
            agent.forget()
            await in_thread(agent.enrol, join_token(plane, ca))

            async def is_counted() -> bool:
                return "connected since before" not in (await rotate(plane, "finish", *pilot, code=1)).err

            await eventually(is_counted, what="no connection is older than the rotation")
            said = (await rotate(plane, "finish", "--force", *pilot)).err
            assert "forced although" in said

            async def is_renewed() -> bool:
                """The server's own certificate no longer leads to the old root."""
                try:
                    await in_thread(agent.enrol)
                except grpc.RpcError:
                    return True
                return False

            await eventually(is_renewed, what="the old root alone no longer verifies the server")
            agent.root = (ca / "root-cert.pem").read_bytes()
            await in_thread(agent.enrol)
            await in_thread(replay_delta, agent)
