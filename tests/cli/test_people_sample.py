"""The tutorial in samples/people, walked command by command: what it says is what happens."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.process]

ROOT = Path(__file__).parents[2]

BROWSER = """\
#!{python}
import sys, httpx
sys.path.insert(0, {root!r})
from tests.support.openid import confirm
with httpx.Client(trust_env=False) as browser:
    confirm(browser, sys.argv[1], "bob")
"""
"""Stands in for the browser, and for who sits before it."""


async def test_the_tutorial_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    provider = require_binary("oidc-provider", "OIDC_PROVIDER", built="oidc-provider/provider.mjs")
    put_tools(tmp_path / "bin")
    (tmp_path / "bin" / "xdg-open").write_text(BROWSER.format(python=sys.executable, root=str(ROOT)))
    (tmp_path / "bin" / "xdg-open").chmod(0o755)
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "samples" / "people", folder / "samples" / "people")
    shutil.copytree(ROOT / "tools" / "oidc_provider", folder / "tools" / "oidc_provider")
    page = in_own_ports(folder, (ROOT / "samples" / "people" / "README.md").read_text(), ("5556", "8080"), free_ports)
    shutil.copyfile(ROOT / "tools" / "get_oidc_provider.py", folder / "tools" / "get_oidc_provider.py")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "oidc-provider").symlink_to(provider.resolve().parent)
    walked = list(steps(page))
    assert len(walked) > 15
    async with terminal(folder, environment(tmp_path / "bin")) as shell:
        await shell.walk(walked)
