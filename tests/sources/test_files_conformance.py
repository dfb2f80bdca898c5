"""Files keep to what every source must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.conformance import Feed, RereadingSourceConformance
from tests.sources.files_feed import FilesFeed


class TestFiles(RereadingSourceConformance):
    @pytest.fixture
    def feed(self, tmp_path: Path) -> Feed:
        return FilesFeed(tmp_path)
