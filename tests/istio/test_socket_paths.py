"""Paths of Unix sockets are as long as their bytes, for which a socket address has room."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.rules.names import MAX_UNIX_PATH, unix_path_reason


@pytest.mark.parametrize(
    ("path", "size"),
    [("/" + "a" * MAX_UNIX_PATH, MAX_UNIX_PATH + 1), ("/run/" + "ü" * 60, 125), ("@" + "世" * 40, 121)],
)
def test_a_path_with_too_many_bytes_is_refused_with_their_number(path: str, size: int) -> None:
    assert unix_path_reason(path) == f"the path of a Unix socket has {size} bytes, allowed are {MAX_UNIX_PATH}"
    assert unix_path_reason(path[:36]) == ""
