"""Tokens of the tests: an issuer with its own key, what it signs, and a server that gives out its public half."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _part(value: object) -> str:
    return _encoded(json.dumps(value).encode())


@attrs.frozen
class Issuer:
    """Signs tokens by ES256."""

    name: str
    key: ec.EllipticCurvePrivateKey = attrs.field(factory=lambda: ec.generate_private_key(ec.SECP256R1()), repr=False)

    @property
    def jwks(self) -> str:
        """Its public key, as a JSON Web Key Set."""
        numbers = self.key.public_key().public_numbers()
        x, y = (_encoded(n.to_bytes(32, "big")) for n in (numbers.x, numbers.y))
        key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.name, "x": x, "y": y}
        return json.dumps({"keys": [key]})

    def token(self, subject: str = "alice", *, lives: float = 600, **claims: Any) -> str:
        """A token for a subject that is good for so many seconds from now."""
        payload = {"iss": self.name, "sub": subject, "exp": int(time.time() + lives), **claims}
        return self.signed({"alg": "ES256", "kid": self.name, "typ": "JWT"}, payload)

    def signed(self, header: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
        """A token of these parts, signed by ES256 whatever the header says."""
        signed = f"{_part(header)}.{_part(payload)}"
        r, s = utils.decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


@attrs.define
class KeyServer:
    """Gives out documents by path; may be changed while it runs."""

    address: str
    documents: dict[str, str] = attrs.field(factory=dict)


@asynccontextmanager
async def key_server() -> AsyncIterator[KeyServer]:
    """A server of documents, and of 404 where there is none."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = KeyServer(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")

        async def answer(stream: trio.SocketStream) -> None:
            async with stream:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += await stream.receive_some()
                body = server.documents.get(request.split()[1].decode())
                status = "404 Not Found" if body is None else "200 OK"
                text = (body or "").encode()
                head = f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
                await stream.send_all(head.encode() + text)

        nursery.start_soon(trio.serve_listeners, answer, listeners)
        yield server
        nursery.cancel_scope.cancel()
