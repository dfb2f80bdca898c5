"""``docs/configuration.md`` lists all settings, made of their declarations. Run this file to write it."""

from __future__ import annotations

import re
from pathlib import Path

from mesh_pilot.cli.discovery.flags import CLASSES
from mesh_pilot.cli.lib.setting_options import default_text
from mesh_pilot.model.flags import Flag, FlagKind, flags_of

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- The lists are made by tests/cli/test_configuration_page.py. -->\n", "<!-- end of the lists -->\n"


def settings() -> list[Flag]:
    return [setting for each in CLASSES for setting in flags_of(each)]


def lists() -> str:
    """A list for each section, in the order of the help."""
    sections: dict[str, list[Flag]] = {}
    for setting in settings():
        sections.setdefault(setting.section, []).append(setting)
    lines = []
    for title, found in sections.items():
        lines += [f"### {title}", "", *map(item, found)]
        lines.append("")
    return "\n".join(lines)


def item(setting: Flag) -> str:
    names = "/".join(f"`{name}`" for name in setting.names)
    said = default(setting)
    text = meaning(setting)
    if "0: no limit" in setting.section:
        text = text.removesuffix(" 0: no limit.")
    return f"- {names}{f' ({said})' if said else ''}: {text}"


def default(setting: Flag) -> str:
    """As the help has it in brackets, else the value."""
    if said := re.search(r"\[default(?:, [^:]*)?: (.*)\]$", setting.help):
        return as_code(said[1])
    if setting.kind is FlagKind.SWITCH:
        return "yes" if setting.default else ""
    value = default_text(setting)
    value = ", ".join(value) if isinstance(value, tuple) else value
    return "" if value in (None, "") else f"`{value}`"


def meaning(setting: Flag) -> str:
    text = setting.doc or re.sub(r"\s*\[default.*\]$", "", setting.help)
    text = re.sub(r"\(docs/([\w-]+)\.md\)", lambda m: f"([{m[1].replace('-', ' ')}]({m[1]}.md))", text)
    if not setting.doc:
        text = as_code(text)
    if isinstance(setting.kind, tuple):
        text += f" One of {', '.join(f'`{choice}`' for choice in setting.kind)}."
    return " ".join(text.split())


def as_code(text: str) -> str:
    """A text of the help in Markdown: flags are code, and so are names in capitals within paths."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*[a-z])", r"`\1`", text)
    return text.replace("|", "\\|").replace("*", "\\*")


def test_the_page_has_every_setting_as_it_is_declared() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == f"\n{lists()}"


def test_every_setting_is_declared_once_and_says_what_it_is_for() -> None:
    names = [name for setting in settings() for name in setting.names]
    assert len(names) == len({*names})
    assert [setting.key for setting in settings() if not (setting.help and setting.section)] == []


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + f"\n{lists()}" + page[page.index(END) :], encoding="utf-8")
