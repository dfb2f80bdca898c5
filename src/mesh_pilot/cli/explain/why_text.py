"""The answer of ``mesh-pilot why`` as text: a line a step, with the object that decides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mesh_pilot.cli.lib.terminal import plain

SHOWN = 5
"""Endpoints that are listed."""


def why_lines(found: Any) -> Iterator[str]:
    """The answer of the API, or of ``explain.inspection.why``, in lines."""
    yield plain(f"{found['request']['text']}: {found['outcome']}")
    yield ""
    yield from _steps(found["steps"])
    if found["nearly"]:
        yield ""
        yield "Nearly:"
        yield from _steps(found["nearly"])
    yield from _destinations(found)
    if found["notes"]:
        yield ""
        yield from _notes(found["notes"])


def _destinations(found: Any) -> Iterator[str]:
    """The answers of the next proxies, in the order of the request's way."""
    for each in found.get("destinations", ()):
        yield ""
        yield plain(f"At {each['endpoint']} ({each['proxy']}): {each['outcome']}")
        yield from _steps(each["steps"])
        yield from _notes(each["notes"])
        yield from _destinations(each)


def _notes(notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield plain(f"  note: {note}")


def _steps(steps: Sequence[Any]) -> Iterator[str]:
    width = max((len(step["step"]) for step in steps), default=0)
    for step in steps:
        yield plain(f"  {step['step']:<{width}}  {step['name']}: {step['text']}")
        indent = " " * (width + 4)
        for endpoint in step["details"].get("endpoints", ())[:SHOWN]:
            yield plain(f"{indent}{_endpoint(endpoint)}")
        if (more := int(step["details"].get("count", 0)) - SHOWN) > 0:
            yield f"{indent}and {more} more"
        for line in step["details"].get("left_out", ()):
            yield plain(f"{indent}left out by the registry: {line}")
        if traffic := step["details"].get("traffic"):
            yield plain(f"{indent}{traffic['text']}")
        for decided in step["decided_by"]:
            what = " ".join(filter(None, (decided["object"], decided["field"])))
            text = f" ({decided['text']})" if decided["text"] else ""
            yield plain(f"{indent}<- {decided['place'] or '-'}  {what}{text}")


def _endpoint(endpoint: Any) -> str:
    parts = [endpoint["address"], endpoint["health"].lower(), f"{endpoint['share']:.3g} %", endpoint["tls"]]
    if endpoint["priority"]:
        parts.append(f"priority {endpoint['priority']}")
    if endpoint["locality"]:
        parts.append(endpoint["locality"])
    return ", ".join(parts)
