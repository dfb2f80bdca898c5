"""What the demo shows: steps, facts and the table of answers; live on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mesh_pilot.cli.demo.traffic import Tally


class Screen:
    """Writes to the standard output. State: the number of the step that is being shown."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._step = 0

    def step(self, title: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold]{self._step}. {title}[/bold]")

    def say(self, text: str) -> None:
        """A fact, indented under its step. The text is shown as it is."""
        self._console.print(f"   {text}", markup=False)

    def good(self, text: str) -> None:
        self._console.print("   [green]ok[/green] ", end="")
        self._console.print(text, markup=False)

    @contextmanager
    def answers(self, tally: Tally) -> Iterator[None]:
        """Show who answers while the block runs: a table that moves on a terminal, and its last state in any case."""
        if self._console.is_terminal:
            with Live(get_renderable=lambda: _table(tally), console=self._console, refresh_per_second=10):
                yield
        else:
            yield
            self._console.print(_table(tally))


def _table(tally: Tally) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("   answered by")
    for door in tally.answers:
        table.add_column(f"via {door}", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    everything = sum(counter.total() for counter in tally.answers.values())
    for name in sorted({name for counter in tally.answers.values() for name in counter}):
        counts = [counter[name] for counter in tally.answers.values()]
        share = 100 * sum(counts) / everything
        table.add_row(f"   {name}", *map(str, counts), f"{share:.0f} %", "#" * round(share / 4))
    return table
