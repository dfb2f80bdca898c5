"""A watch runs for days: the bound on an event is one on each, not on all that ever came."""

from __future__ import annotations

import pytest

from mesh_pilot.kubernetes.apiserver.access import KubernetesError
from mesh_pilot.kubernetes.apiserver.decoding import LineBuffer


def test_events_that_come_in_pieces_may_be_any_number() -> None:
    buffer = LineBuffer(max_bytes=10)
    for _ in range(20):
        assert list(buffer.feed(b"abcd")) == []
        assert list(buffer.feed(b"ef\n")) == [b"abcdef"]
    with pytest.raises(KubernetesError, match="more than 10 bytes"):
        for _ in range(3):
            list(buffer.feed(b"abcd"))
