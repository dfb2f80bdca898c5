"""Why something could not be fetched, in words that show no secret."""

from __future__ import annotations

from urllib.parse import urlsplit


class FetchError(Exception):
    """Something that could not be fetched, with the reason for people."""


def shown_url(url: str) -> str:
    """A URL as people are shown it: without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as brackets that do not match
        return url.partition("://")[0] + "://..."
    host = parts.netloc.rpartition("@")[2]
    query = "?..." if parts.query or parts.fragment else ""
    if not parts.scheme or not (host or parts.path.startswith("/")):
        return url.rpartition("@")[2].partition("?")[0].partition("#")[0] + query
    shown = f"{parts.scheme}://{host}{parts.path}{query}"
    return "".join(c if c.isprintable() else "?" for c in shown)


def reason_of(error: BaseException) -> str:
    """The text of an error, or of the first of its causes that has one: a failed TLS handshake has none itself."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)[:500]
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
