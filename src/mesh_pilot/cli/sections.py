"""A command of many flags, whose help shows them in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

OTHER = "Other options"


class SectionedCommand(click.Command):
    """``sections``: titles, each with the flags it shows, by name or as a pattern such as ``--consul-*``."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def section_of(self, option: click.Parameter) -> str:
        """The section that a flag belongs to."""
        name = option.opts[0]
        for title, patterns in self.sections.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return title
        return OTHER

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.sections, OTHER)}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                rows[self.section_of(param)].append(row)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
