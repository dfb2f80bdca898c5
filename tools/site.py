"""Hooks of mkdocs, by which ``tox -e docs`` makes the site from the pages as they are in the repository.

- The navigation is that of the pages themselves: ``docs/README.md`` lists the doors, and each door the pages behind it,
  in the order in which they are read. A page that no door lists is a warning, and the build is strict.
- A page loads nothing from another server: what would make the theme's script do so is not there.
- A link to a file outside ``docs/`` (a sample, a test) leads to that file in the repository.
"""

from __future__ import annotations

import posixpath
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_ITEM = re.compile(r"^(?:- |\d+\. ).*", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+\.md)[)#]")
"""A link to another page: its title and its file."""

_LOADED = re.compile(r"""\bsrc="?((?:https?:)?//[^">]+)|(?:url\(|@import )["']?((?:https?:)?//[^"')]+)""")
_LOADING = {"mermaid, of a CDN": 'class="mermaid"', "the repository's stars": 'data-md-component="source"'}
"""What the theme's script loads where it finds a mark."""

_OUTSIDE = re.compile(r"(?<=\]\()(?:\.\./)+[^)]*|(?<=\]\()decisions(?=\))")


def doors(docs: Path) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """The pages behind each door, in order: file of the door to its title, and title and file of each page.

    A page that two doors list stands behind the first.
    """
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    listed = _listed(docs / "README.md")
    seen = {file for _, file in listed}
    for title, file in listed:
        pages = []
        for name, page in _listed(docs / file):
            if page not in seen:
                seen.add(page)
                pages.append((name, page))
        found[file] = (title, pages)
    return found


def _listed(door: Path) -> list[tuple[str, str]]:
    """Title and file of each page that the lists before the first section name."""
    head = door.read_text(encoding="utf-8").partition("\n## ")[0]
    return [link for item in _ITEM.findall(head) for link in _LINK.findall(item)]


def on_config(config: Any) -> None:
    """The navigation: a tab a door, the decisions behind the last one."""
    docs = Path(config["docs_dir"])
    nav: list[dict[str, Any]] = [{"Home": "README.md"}]
    for file, (title, pages) in doors(docs).items():
        nav.append({title: [{"Overview": file}, *({name: page} for name, page in pages)]})
    decisions = sorted(f"decisions/{page.name}" for page in (docs / "decisions").glob("*.md"))
    nav[-1][next(iter(nav[-1]))].append({"Decisions": decisions})
    config["nav"] = nav


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page's text with links out of ``docs/`` that lead to the repository."""
    here = posixpath.dirname(f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[0]))
        if target.startswith("docs/") and target != "docs/decisions":
            return match[0]
        return f"{config['repo_url']}/blob/main/{target}"

    return _OUTSIDE.sub(link, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The page without the mark by which the theme's script asks the host of the repository for its stars."""
    return output.replace(' data-md-component="source"', "")


on_post_template = on_post_page  # of 404.html


def foreign(site: Path) -> list[str]:
    """What a browser would load from another server: page or style sheet, and the address or the cause."""
    found = []
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        loads = [
            *(a or b for a, b in _LOADED.findall(text)),
            *(name for name, mark in _LOADING.items() if mark in text),
        ]
        loads += [tag for tag in re.findall(r"<link[^>]+//[^>]+>", text) if 'rel="canonical"' not in tag]
        found += [f"{file.relative_to(site)}: {load}" for load in loads]
    return found


def broken(site: Path) -> list[str]:
    """The links of a built site that lead nowhere: page, link."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    found = []
    for page, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            target, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"[a-z]+:", target) or page.name == "404.html":
                continue
            file = page if not target else Path(posixpath.normpath(page.parent / target))
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in ids and anchor not in ids[file]):
                found.append(f"{page.relative_to(site)}: {link}")
    return found


def main() -> int:
    """Walks every link of the site in a folder; says which lead nowhere, and what another server would be asked for."""
    (site,) = map(Path, sys.argv[1:])
    wrong = [*broken(site), *(f"{each}: from another server" for each in foreign(site))]
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
