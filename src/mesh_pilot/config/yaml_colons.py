"""Plain values with colons in flow lists, ``[10.0.0.1, 2001:db8::]``, which libyaml refuses and YAML allows.

Go's reader takes them, and so do files that were written for Istio. libyaml says where it stopped: the value there is
put in quotes, and the text is read again.
"""

from __future__ import annotations

import re

import yaml

MAX_MENDED = 64
"""Values in one text: each costs another reading."""

MAX_TEXT = 64 * 1024
"""Characters of a text that is read so often."""

_VALUE = re.compile(r"[^,\[\]{}\s'\"]+(?=\s*[,\]}])")
_ADDRESS = re.compile(r"::[0-9a-fA-F:.]*(?:/[0-9]{1,3})?")


def with_quotes(text: str, error: yaml.MarkedYAMLError) -> str | None:
    """The text with quotes around the value that libyaml stopped at; None where that is not what is wrong."""
    if len(text) > MAX_TEXT:
        return None
    if error.problem == "found unexpected ':'" and error.context_mark is not None:
        value = _VALUE.match(text, error.context_mark.index)
    elif error.problem == "did not find expected node content" and error.problem_mark is not None:
        value = _VALUE.match(text, error.problem_mark.index)
        if value is not None and not _ADDRESS.fullmatch(value[0]):
            return None
    else:
        return None
    return f"{text[: value.start()]}'{value[0]}'{text[value.end() :]}" if value is not None else None
