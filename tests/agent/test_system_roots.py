"""Where an agent finds the CA certificates of its operating system."""

from __future__ import annotations

from pathlib import Path

from mesh_pilot.agent.bootstrap.system_roots import system_roots


def test_the_first_file_that_can_be_used_counts(tmp_path: Path) -> None:
    debian, fedora, named = (tmp_path / name for name in ("debian.crt", "fedora.pem", "named.pem"))
    places = (str(debian), str(fedora))
    assert system_roots({}, places) == ""
    fedora.write_text("roots")
    debian.write_text("")
    assert system_roots({}, places) == str(fedora), "an empty file has no roots"
    assert system_roots({"SSL_CERT_FILE": str(named)}, places) == str(fedora)
    named.write_text("roots")
    assert system_roots({"SSL_CERT_FILE": str(named)}, places) == str(named)
    debian.unlink()
    debian.mkdir()
    assert system_roots({}, places) == str(fedora)
