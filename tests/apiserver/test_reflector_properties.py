"""Whatever happens, in any order: a reflector ends in the server's state, and tells nothing that did not change."""

from __future__ import annotations

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.apiserver.following import following, pod
from tests.support.api_double import PODS, ApiDouble, Snapshot
from tests.support.sample import examples

NAMES = st.sampled_from("abcde")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("remove"), NAMES),
    st.sampled_from(
        [
            ("cut",), ("end",), ("gone",), ("compact",), ("expire pages",), ("silence",), ("speak",), ("garbage",),
            ("forbid",), ("allow",), ("snapshot",), ("restore",), ("fail",), ("busy",), ("bookmark",), ("doubled",),
        ]
    ),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 1.5, 40.0, 400.0])),
)  # fmt: skip


class Server:
    """What happens to a double. State: that, and a backup of it."""

    def __init__(self, double: ApiDouble) -> None:
        self.double = double
        self.backup: Snapshot | None = None
        self.specs: dict[object, object] = {}
        self.is_ambiguous = False
        """An object had the same version with different content, before and after a restore: nobody can notice."""

    async def happen(self, step: tuple[object, ...]) -> None:
        double = self.double
        match step:
            case ("put", str(name), version):
                found = double.put(PODS, pod(name, version=version))
                written = (name, found["metadata"]["resourceVersion"])
                self.is_ambiguous |= self.specs.setdefault(written, version) != version
            case ("remove", str(name)) if double.find(PODS, name, "shop"):
                double.remove(PODS, name, "shop")
            case ("cut",):
                double.cut_watches()
            case ("end",):
                double.end_watches()
            case ("gone",):
                double.gone_watches()
            case ("compact",):
                double.compact()
            case ("expire pages",):
                double.expire_pages()
            case ("silence",):
                double.silent = True
            case ("speak",):
                double.silent = False
                double.wake()
            case ("garbage",):
                double.write_to_watches(b'{"type":"ADDED","object":{"metadata"\n')
            case ("doubled",):
                for found in double.objects.get(("", "pods"), {}).values():
                    double.put(PODS, {**found, "metadata": dict(found["metadata"])})
            case ("forbid",):
                double.forbid("pods")
            case ("allow",):
                double.allow("pods")
            case ("snapshot",):
                self.backup = double.snapshot()
            case ("restore",) if self.backup is not None:
                double.restore(self.backup)
            case ("fail",):
                double.fail("GET", 500, times=2)
            case ("busy",):
                double.fail("GET", 429, retry_after=7)
            case ("bookmark",):
                double.bookmark()
            case ("wait", float(seconds)):
                await trio.sleep(seconds)


@given(
    steps=st.lists(STEPS, max_size=25),
    streaming=st.sampled_from(["yes", "invalid", "event"]),
    page=st.integers(1, 3),
    as_event=st.booleans(),
)
@example([("wait", 1.5), ("snapshot",), ("put", "a", 1), ("wait", 1.5), ("restore",), ("put", "b", 1)], "yes", 2, False)
@settings(max_examples=examples(150), deadline=None)
def test_any_interleaving_ends_in_the_servers_state(
    steps: list[tuple[object, ...]], streaming: str, page: int, as_event: bool
) -> None:
    async def main() -> None:
        double = ApiDouble([PODS], streaming_lists=streaming, largest_page=page, gone_as_event=as_event)
        for name in "abc":
            double.put(PODS, pod(name))
        server = Server(double)
        async with following(double) as seen:  # which sees that nothing is told twice
            for step in steps:
                await server.happen(step)
            for step in (("speak",), ("allow",)):
                await server.happen(step)
            if server.is_ambiguous:
                return
            with trio.fail_after(1200):
                await seen.until(lambda: not seen.is_lost and state(double) == versions(seen.objects))
            await trio.sleep(1000)
            assert state(double) == versions(seen.objects)
            with trio.fail_after(600):
                await double.until_watched("pods")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def state(double: ApiDouble) -> dict[str, object]:
    found = double.objects.get(("", "pods"), {})
    return versions({f"{namespace}/{name}": each for (namespace, name), each in found.items()})


def versions(objects: dict[str, dict[str, dict[str, object]]]) -> dict[str, object]:
    return {key: (found["metadata"]["resourceVersion"], found["spec"]) for key, found in objects.items()}
