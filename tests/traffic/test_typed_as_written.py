"""What the README and the demo's sample tell to type, typed as it stands (but for the ports)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tutorial import Step, environment, in_own_ports, put_tools, steps, terminal

pytestmark = pytest.mark.envoy

ROOT = Path(__file__).parents[2]
Ports = Callable[[int], list[int]]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout as far as the pages need one: the samples, and what the first command of the README installs."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "samples", folder / "samples")
    put_tools(folder / ".venv" / "bin")
    return folder


def test_a_copied_sample_is_whole(tmp_path: Path) -> None:
    for sample in (ROOT / "samples").iterdir():
        assert not any(path.is_symlink() for path in (sample, *sample.rglob("*")))


async def test_what_the_readme_tells_to_use_works_in_one_terminal(checkout: Path, free_ports: Ports) -> None:
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## Use it") : text.index("## Next to others")]
    commands = re.findall(r"^    (.*)$", in_own_ports(checkout, section, ("9080", "9101"), free_ports), re.MULTILINE)
    (request,) = [command for command in commands if command.startswith("curl")]
    seen = {
        request: ["hello from the mesh"],
        next(command for command in commands if " analyze " in command): ["2 objects are good, 0 errors, 0 warnings"],
    }
    async with terminal(checkout, environment(checkout / "nothing")) as shell:
        for command in commands:
            if "proxy-status" in command:
                status = await shell.type(command)
                assert re.search(r"^web-1.shop +sidecar .* SYNCED", status, re.MULTILINE), status
            else:
                await shell.walk([Step(command, tuple(seen.get(command, ())))])
        assert "refused" in (await shell.type(f"wait; {request} --retry 0 || echo refused")).lower()


async def test_the_demos_sample_by_hand_is_as_it_says(checkout: Path, free_ports: Ports) -> None:
    ports = ("9000", "9080", "9101", "9102", "9103", "15005")
    page = in_own_ports(checkout, (ROOT / "samples" / "demo" / "README.md").read_text(), ports, free_ports)
    walked = list(steps(page))
    assert sum(bool(step.output) for step in walked) == 4
    async with terminal(checkout, environment(checkout / ".venv" / "bin")) as shell:
        await shell.walk(walked)
