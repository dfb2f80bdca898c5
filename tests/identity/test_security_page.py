"""Claims of docs/security.md and docs/authentication.md about keys, callers and files."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import stat
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import mesh_pilot.identity
from mesh_pilot.app.settings import Settings
from mesh_pilot.identity import authenticators
from mesh_pilot.identity.authenticators.settings import JOIN_TOKENS
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.callers import is_local
from mesh_pilot.model.spiffe import Identity
from tests.support.planes import running_plane
from tests.test_docs_claims import names, part, rows

CODE = Path(mesh_pilot.identity.__file__).parent
_REASON = re.compile(r'AuthenticationError\(\s*"(\w+)"')


def reasons(*files: Path) -> set[str]:
    """The reasons with which code refuses evidence."""
    return {reason for file in files for reason in _REASON.findall(file.read_text(encoding="utf-8"))}


def test_every_authenticator_is_in_the_table_of_evidence() -> None:
    found = set()
    for module in pkgutil.iter_modules(authenticators.__path__, f"{authenticators.__name__}."):
        classes = vars(importlib.import_module(module.name)).values()
        own = [c for c in classes if isinstance(c, type) and c.__module__ == module.name]
        names_of = (getattr(c, "name", None) for c in own if hasattr(c, "authenticate"))
        found |= {name for name in names_of if isinstance(name, str)}
    assert len(found) >= 3
    table = rows(part("authentication.md", "| authenticator |", "\n\n"))
    assert found <= {name for row in table for name in names(row[0])}


def test_the_reasons_why_a_join_token_is_refused_are_those_of_the_code() -> None:
    table = rows(part("authentication.md", "| reason |", "| `disabled`"))
    listed = {name for row in table if "join_token" in names(row[1]) for name in names(row[0])} | {"disabled"}
    assert listed == reasons(CODE / "tokens" / "join_tokens.py", CODE / "authenticators" / "join_token.py")


def test_the_reasons_to_alert_on_are_given_by_some_authenticator() -> None:
    text = part("security.md", "Alert on refusals", "are not accidents")
    assert names(text) - {"revoked"} <= reasons(*CODE.rglob("*.py"))


def test_nothing_is_open_by_default_but_configuration_on_this_machine() -> None:
    settings = Settings()
    assert not settings.trust_local
    for address in (settings.grpc_addr, settings.secure_grpc_addr, settings.http_addr, settings.monitoring_addr):
        assert is_local(address)


@pytest.mark.plane
async def test_files_have_the_modes_of_the_table_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    table = [
        (pattern.replace("ID", "?" * 16), row[1])
        for row in rows(part("security.md", "## What is on which disk", "## How to rotate"))
        for pattern in names(row[0])
    ]
    mask = os.umask(0)
    try:
        made = JoinTokens(tmp_path / "ca" / JOIN_TOKENS).create(
            Identity("cluster.local", "shop", "web"), timedelta(hours=1)
        )
        async with running_plane(tmp_path / "config", ca_dir=tmp_path / "ca"):
            pass
    finally:
        os.umask(mask)
    files = [file for file in (tmp_path / "ca").rglob("*") if file.is_file()]
    assert {"keys.json", f"{made.record.id}.json"} < {file.name for file in files}
    for file in files:
        expected = next(mode for pattern, mode in table if fnmatchcase(file.name, pattern))
        assert f"{stat.S_IMODE(file.stat().st_mode):04o}" == expected, file
    assert stat.S_IMODE((tmp_path / "ca" / JOIN_TOKENS).stat().st_mode) == 0o700
