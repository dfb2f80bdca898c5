"""Files that commands read: as arguments or after ``-f``, alike in every command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_SUFFIXES = (".yaml", ".yml", ".json")
_PATH = click.Path()


def files_flag(text: str) -> Callable[[F], F]:
    """The flag alone, for a command whose arguments may also be something else."""
    return click.option("--filename", "-f", "files", multiple=True, type=_PATH, help=f"{text}  Repeatable.")


def takes_files(text: str, *, required: bool) -> Callable[[F], F]:
    """Arguments and the flag; the command gets all of them as ``files``."""

    def decorate(command: F) -> F:
        @click.argument("paths", nargs=-1, type=_PATH, metavar="FILE..." if required else "[FILE]...")
        @files_flag(text)
        @wraps(command)
        def wrapped(*args: Any, paths: tuple[str, ...], files: tuple[str, ...], **options: Any) -> Any:
            if required and not (paths or files):
                raise click.UsageError("name files or folders, or - for standard input")
            return command(*args, files=together(files, paths), **options)

        return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type

    return decorate


def together(files: Iterable[str], paths: Iterable[str]) -> tuple[str, ...]:
    """The files of the flag and of arguments. Raises UsageError for standard input that is named twice."""
    found = (*files, *paths)
    if found.count("-") > 1:
        raise click.UsageError("- is standard input, which can be read once only")
    return found


def is_file(word: str) -> bool:
    """True for a word that is written as a file or a folder, where it may also be a kind or a name."""
    return word == "-" or word.endswith((*_SUFFIXES, "/")) or word.startswith((".", "/", "~"))
