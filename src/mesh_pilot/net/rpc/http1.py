"""Detection of HTTP/1.1 where HTTP/2 is expected (most likely a wrong port), and an answer in HTTP/1.1."""

from __future__ import annotations

__all__ = ["answer", "is_request", "is_response"]

_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE"))


def is_request(data: bytes) -> bool:
    """True if a client's first bytes are HTTP/1."""
    return data[:8].partition(b" ")[0] in _METHODS


def is_response(data: bytes) -> bool:
    """True if a server's first bytes are HTTP/1. HTTP/2 begins with the length of a small frame."""
    return data.startswith(b"HTTP/")


def answer(text: str) -> bytes:
    """A response with ``text`` that ends the connection."""
    body = f"{text}\n".encode()
    head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
