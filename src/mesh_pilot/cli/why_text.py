"""The answer of ``mesh-pilot why`` as text: a line a step, with the object that decides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

SHOWN = 5
"""Endpoints that are listed."""


def why_lines(found: Any) -> Iterator[str]:
    """The answer of the API, or of ``inspection.why``, in lines."""
    yield printable(f"{found['request']['text']}: {found['outcome']}")
    yield ""
    yield from _steps(found["steps"])
    if found["nearly"]:
        yield ""
        yield "Nearly:"
        yield from _steps(found["nearly"])
    for each in found.get("destinations", ()):
        yield ""
        yield printable(f"At {each['endpoint']} ({each['proxy']}): {each['outcome']}")
        yield from _steps(each["steps"])
        yield from _notes(each["notes"])
    if found["notes"]:
        yield ""
        yield from _notes(found["notes"])


def _notes(notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield printable(f"  note: {note}")


def _steps(steps: Sequence[Any]) -> Iterator[str]:
    width = max((len(step["step"]) for step in steps), default=0)
    for step in steps:
        yield printable(f"  {step['step']:<{width}}  {step['name']}: {step['text']}")
        indent = " " * (width + 4)
        for endpoint in step["details"].get("endpoints", ())[:SHOWN]:
            yield printable(f"{indent}{_endpoint(endpoint)}")
        if (more := int(step["details"].get("count", 0)) - SHOWN) > 0:
            yield f"{indent}and {more} more"
        for decided in step["decided_by"]:
            what = " ".join(filter(None, (decided["object"], decided["field"])))
            text = f" ({decided['text']})" if decided["text"] else ""
            yield printable(f"{indent}<- {decided['place'] or '-'}  {what}{text}")


def _endpoint(endpoint: Any) -> str:
    parts = [endpoint["address"], endpoint["health"].lower(), f"{endpoint['share']:.3g} %", endpoint["tls"]]
    if endpoint["priority"]:
        parts.append(f"priority {endpoint['priority']}")
    if endpoint["locality"]:
        parts.append(endpoint["locality"])
    return ", ".join(parts)


def printable(line: str) -> str:
    """A line for a terminal: names come from proxies and registries, and may be hostile."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
