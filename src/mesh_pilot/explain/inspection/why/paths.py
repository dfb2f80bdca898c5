"""Paths as routes see them: normalized as the connection manager says (Envoy: "Path normalization")."""

from __future__ import annotations

import re

from mesh_pilot.explain.inspection.why.matchers import Message

_UNRESERVED = re.compile(rb"[A-Za-z0-9._~-]")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_ESCAPED_SLASH = re.compile(r"%2[fF]|%5[cC]")


def normalized_path(manager: Message, path: str) -> tuple[str, str]:
    """(the path, why it differs; empty if it does not)."""
    bare, mark, query = path.partition("?")
    found, reasons = bare, []
    action = manager.get("path_with_escaped_slashes_action", "KEEP_UNCHANGED")
    if action in ("UNESCAPE_AND_FORWARD", "UNESCAPE_AND_REDIRECT"):
        unescaped = _ESCAPED_SLASH.sub(lambda match: "/" if match[0].lower() == "%2f" else "\\", found)
        if unescaped != found:
            found = unescaped
            reasons.append("escaped slashes are unescaped")
    if manager.get("normalize_path") and (normal := _normal(found)) != found:
        found = normal
        reasons.append("it is normalized")
    if manager.get("merge_slashes") and (merged := re.sub("//+", "/", found)) != found:
        found = merged
        reasons.append("slashes are merged")
    return found + mark + query, ", ".join(reasons)


def _normal(path: str) -> str:
    """RFC 3986, section 6.2.2, as browsers do it: dots resolved, backslashes are slashes, needless escapes undone."""
    path = _ESCAPED.sub(_unescaped, path.replace("\\", "/"))
    if "/." not in path:
        return path
    out: list[str] = []
    parts = path.split("/")[1:]
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "..":
            if out:
                out.pop()
            if last:
                out.append("")
        elif part == ".":
            if last:
                out.append("")
        else:
            out.append(part)
    return "/" + "/".join(out)


def _unescaped(match: re.Match[str]) -> str:
    byte = bytes([int(match[1], 16)])
    return byte.decode() if _UNRESERVED.fullmatch(byte) else match[0]
