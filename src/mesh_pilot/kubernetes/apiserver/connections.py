"""HTTP clients towards an API server: TLS, proxies, and keepalives that find a peer that is gone."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

import httpx

from mesh_pilot.kubernetes.apiserver.access import Access, KubernetesError
from mesh_pilot.kubernetes.apiserver.credentials import Credential
from mesh_pilot.net.fetching.proxies import proxy_of

CONNECT_SECONDS = 10.0

_KEEPALIVE = (("SO_KEEPALIVE", socket.SOL_SOCKET, 1), ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 30),
              ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10), ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3))  # fmt: skip
"""The kernel asks a silent peer after half a minute, and gives it up half a minute later."""

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=30.0)
"""A connection for each watch; a few more stay open for requests."""


def open_http(access: Access, credential: Credential, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """A client with the certificates of these credentials. Raises KubernetesError."""
    if transport is None:
        try:
            transport = httpx.AsyncHTTPTransport(
                verify=_tls(access, credential),
                limits=_LIMITS,
                proxy=access.proxy or proxy_of(access.server, os.environ) or None,
                socket_options=[
                    (level, getattr(socket, name), value) for name, level, value in _KEEPALIVE if hasattr(socket, name)
                ],
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise KubernetesError(f"{access.server}: its proxy can't be used: {error}") from error
    headers = [("accept", "application/json"), *access.headers]
    if not any(name.lower() == "accept-encoding" for name, _ in headers):
        headers.append(("accept-encoding", "gzip"))
    try:
        return httpx.AsyncClient(
            base_url=access.server,
            headers=[(name.encode(), value.encode()) for name, value in headers],
            trust_env=False,
            transport=transport,
            timeout=None,
        )
    except (ValueError, httpx.InvalidURL) as error:
        raise KubernetesError(f"{access.server}: its URL can't be used: {error}") from error


class _NamedContext(ssl.SSLContext):
    """TLS towards a server whose certificate has another name than its URL."""

    server_name: str

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**options, "server_hostname": self.server_name})


def _tls(access: Access, credential: Credential) -> ssl.SSLContext | bool:
    if not access.server.startswith("https:"):
        return False
    try:
        context: ssl.SSLContext
        if access.server_name:
            context = named = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
            named.server_name = access.server_name
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if access.authority:
            context.load_verify_locations(cadata=access.authority.read().decode("ascii", "replace"))
        else:
            context.load_default_certs()
        if not access.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if credential.certificate:
            with tempfile.TemporaryDirectory() as folder:  # ssl takes these from files only
                certificate, key = Path(folder, "certificate"), Path(folder, "key")
                certificate.write_bytes(credential.certificate)
                key.write_bytes(credential.key)
                context.load_cert_chain(certificate, key, password="")  # nobody is asked for one
    except (ssl.SSLError, OSError, ValueError) as error:
        raise KubernetesError(
            f"{access.server}: its certificate files can't be used: {error}; PEM is wanted, with the certificate's key"
        ) from error
    return context
