"""Templates of what is injected: Jinja2, whose result is the YAML of a part of a Pod.

Jinja2 because it is what Python programs use for templates, and kept; its sandbox bounds what a template may do. Every
value of a Pod goes through the filter ``json``, so that no annotation can become YAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mesh_pilot.kubernetes.webhooks.injection.annotations import read_yaml
from mesh_pilot.kubernetes.webhooks.injection.configuration import GATEWAY, SIDECAR
from mesh_pilot.kubernetes.webhooks.injection.merge import Pod

MAX_RENDERED = 1 << 20
"""Characters of what a template makes; a Pod has no more."""


class InjectionTemplateError(ValueError):
    """A template that cannot be used: its name, its line where it is known, and the reason."""


class InjectionTemplates:
    """Compiled templates by name: ours, and those of the settings."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Raises InjectionTemplateError for a text that is no template."""
        folder = files(__package__).joinpath("templates")
        ours = {name: folder.joinpath(f"{name}.yaml").read_text("utf-8") for name in (SIDECAR, GATEWAY, "parts")}
        environment = SandboxedEnvironment(loader=DictLoader({**ours, **texts}), undefined=StrictUndefined)
        environment.filters["json"] = _json
        self._templates: dict[str, Template] = {}
        for name in (SIDECAR, GATEWAY, *texts):
            try:
                self._templates[name] = environment.get_template(name)
            except TemplateError as error:
                raise InjectionTemplateError(f"template {name}{_line(error)}: {error}") from None
            except (RecursionError, MemoryError, SyntaxError) as error:  # of Python, which compiles what Jinja2 makes
                raise InjectionTemplateError(f"template {name}: nested too deeply: {type(error).__name__}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def render(self, name: str, context: Mapping[str, Any]) -> Pod:
        """The part of a Pod that a template makes. Raises InjectionTemplateError."""
        if name not in self._templates:
            raise InjectionTemplateError(f"there is no template {name!r}; known: {', '.join(sorted(self._templates))}")
        text = ""
        try:
            for piece in self._templates[name].generate(context):
                text += piece
                if len(text) > MAX_RENDERED:
                    raise InjectionTemplateError(f"template {name} makes more than {MAX_RENDERED} characters")
        except InjectionTemplateError:
            raise
        except Exception as error:  # a template is a program: it fails with whatever it likes
            raise InjectionTemplateError(f"template {name}{_line(error)}: {error or type(error).__name__}") from None
        try:
            return read_yaml(text, f"template {name} makes no object with the parts of a Pod")
        except ValueError as error:
            raise InjectionTemplateError(str(error)) from None


def _line(error: BaseException) -> str:
    """The line in a template where an exception was raised, for people."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def _json(value: object) -> str:
    """The value as JSON, which is YAML as well."""
    return json.dumps(value, sort_keys=True)
