"""Certificates for tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls
from tests.support.certificates import write_certificates


@pytest.fixture
def client_tls(tmp_path: Path) -> ClientTls:
    """A CA and a certificate it signed, as files."""
    files = write_certificates(tmp_path, "web-1")
    return ClientTls(files.ca, files.certificate, files.key, server_name="pilot.internal")
