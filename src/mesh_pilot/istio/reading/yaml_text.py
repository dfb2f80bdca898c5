"""Plain data to YAML text, with every text quoted that `istio.reading.yaml`, or Kubernetes, would read as something
else."""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from mesh_pilot.istio.reading.yaml_marked import NumberTooLongError, scalar_value


class _Dumper(yaml.CSafeDumper):
    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None if _is_plain(data) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def yaml_text(documents: Iterable[object]) -> str:
    """The documents, with ``---`` between them; texts of several lines are written as such."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False))


def _is_plain(text: str) -> bool:
    """True if the text without quotes is the text: ``1234e56`` is a number for Kubernetes, and none for PyYAML."""
    try:
        return scalar_value(text) == text
    except NumberTooLongError:
        return False
