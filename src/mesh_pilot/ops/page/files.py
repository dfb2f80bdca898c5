"""The files of the web page, as they are in the package: no build, no CDN, nothing from elsewhere.

The policy lets a browser run and load only these: what a name of the mesh contains is never a script.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources import files

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh_pilot.ops.web.responses import accepts_gzip, text

TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by suffix. Files of other suffixes are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Sent with each page and file."""


@attrs.frozen
class PageFile:
    """A file of the page."""

    body: bytes
    compressed: bytes
    media_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """The files, by their paths below ``static``."""
    found = {}
    root = files(__package__).joinpath("static")
    for folder, prefix in ((root, ""), (root.joinpath("vendor"), "vendor/")):
        for each in folder.iterdir():
            media_type = TYPES.get("." + each.name.rpartition(".")[2])
            if media_type is not None and each.is_file():
                body = each.read_bytes()
                packed, etag = gzip.compress(body, mtime=0), f'"{hashlib.sha256(body).hexdigest()[:20]}"'
                found[prefix + each.name] = PageFile(body, packed, media_type, etag)
    return found


def file_routes() -> list[Route]:
    """The routes of the page, which is one of its files, and of the files: ``/page/{name:path}``."""
    known = page_files()

    async def endpoint(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in known:
            return text(f"the page has no file {name[:100]!r}\n", status=404)
        file = known[name]
        headers = {**HEADERS, "etag": file.etag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if accepts_gzip(request.headers):
            packed = {**headers, "content-encoding": "gzip"}
            return Response(file.compressed, media_type=file.media_type, headers=packed)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return [Route("/", endpoint), Route("/page/{name:path}", endpoint)]
