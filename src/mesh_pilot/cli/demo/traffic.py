"""The demo's requests: a steady stream through each Envoy, and a tally of who answered."""

from __future__ import annotations

from collections import Counter

import attrs
import httpx
import trio


@attrs.frozen
class Door:
    """A way into the mesh: an address that an Envoy listens on, and the host that is asked for there."""

    name: str
    address: str
    host: str


@attrs.define
class Tally:
    """Answers counted since the last ``restart``; requests and failures since the start."""

    answers: dict[str, Counter[str]] = attrs.field(factory=dict)
    """By door: how many answers each backend gave."""
    requests: int = 0
    failures: list[str] = attrs.field(factory=list)
    """What went wrong, one text for each failed request."""

    def restart(self) -> None:
        for counter in self.answers.values():
            counter.clear()

    @property
    def fewest(self) -> int:
        """Answers counted at the door that has the fewest."""
        return min((counter.total() for counter in self.answers.values()), default=0)

    def share(self, version: str) -> float:
        """Per cent of all counted answers that backends of a version gave."""
        total = sum(counter.total() for counter in self.answers.values())
        got = sum(count for c in self.answers.values() for name, count in c.items() if name.startswith(version))
        return 100 * got / total if total else 0.0


async def keep_asking(door: Door, tally: Tally, *, per_second: int = 100) -> None:
    """Send requests through a door until cancelled, one after the other, each to be answered within 5 seconds."""
    answers = tally.answers.setdefault(door.name, Counter())
    async with httpx.AsyncClient(timeout=5, trust_env=False, headers={"host": door.host}) as client:
        while True:
            next_at = trio.current_time() + 1 / per_second
            try:
                reply = await client.get(f"http://{door.address}/")
            except httpx.HTTPError as error:
                failure = f"{door.name}: {type(error).__name__} {error}"
            else:
                failure = f"{door.name}: HTTP {reply.status_code} {reply.text}" if reply.status_code != 200 else ""
            tally.requests += 1
            if failure:
                tally.failures.append(failure)
            else:
                answers[reply.text] += 1
            await trio.sleep_until(next_at)
