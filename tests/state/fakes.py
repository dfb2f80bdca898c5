"""Stand-ins for what the recorder asks."""

from __future__ import annotations


class FakeSource:
    """A source that the test speaks for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.synced = False

    def statistics(self) -> FakeSource:
        return self
