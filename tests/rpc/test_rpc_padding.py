"""Padding of DATA frames counts for flow control, and is credited to the peer at once: it is in no message."""

from __future__ import annotations

from mesh_pilot.net.rpc.inbox import Inbox


async def test_padding_is_credited_before_the_message_is_read_and_once() -> None:
    credited: list[int] = []
    inbox = Inbox(credited.append, limit=100, batch=1)
    message = b"\0" + (3).to_bytes(4, "big") + b"abc"
    inbox.add(message, len(message) + 20)
    assert sum(credited) == 20
    assert await inbox.read_message() == b"abc"
    assert sum(credited) == len(message) + 20
