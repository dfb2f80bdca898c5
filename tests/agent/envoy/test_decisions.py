"""The pure parts of Envoy's life: delays between starts, readiness, and log lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.agent.envoy.command import flags
from mesh_pilot.agent.envoy.life import FIRST_SECONDS, LONGEST_SECONDS, STEADY_SECONDS, RestartBackoff
from mesh_pilot.agent.envoy.log import LINES_AT_ONCE, LONGEST, EnvoyLog, LogParser
from mesh_pilot.agent.envoy.readiness import awaited, why_not_ready
from mesh_pilot.agent.settings import EnvoySettings

ALL = {
    "cluster_manager.cds.update_success": 1,
    "listener_manager.lds.update_success": 1,
    "listener_manager.workers_started": 1,
}
BOTH = ("cluster_manager.cds", "listener_manager.lds")


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2 * STEADY_SECONDS)), min_size=1, max_size=60))
def test_delays_are_bounded_and_grow_while_envoy_does_not_live_long(lives: list[tuple[float, float]]) -> None:
    chances = iter([chance for chance, _ in lives])
    backoff = RestartBackoff(lambda: next(chances))
    in_a_row = 0
    for _, lived in lives:
        in_a_row = 0 if lived >= STEADY_SECONDS else in_a_row
        delay = backoff.after(lived)
        full = min(LONGEST_SECONDS, FIRST_SECONDS * 2**in_a_row)
        assert full / 2 <= delay <= full
        in_a_row += 1


def test_ready_is_live_with_workers_and_a_first_configuration() -> None:
    assert why_not_ready("LIVE", ALL, BOTH) == ""
    assert why_not_ready("INITIALIZING", ALL, BOTH) == "Envoy is INITIALIZING"
    assert why_not_ready("LIVE", {}, BOTH) == "no clusters from the control plane yet"
    assert why_not_ready("LIVE", {**ALL, "listener_manager.lds.update_success": 0}, BOTH).startswith("no listeners")
    rejected = {**ALL, "cluster_manager.cds.update_success": 0, "cluster_manager.cds.update_rejected": 2}
    assert why_not_ready("LIVE", rejected, BOTH) == "Envoy has rejected its first clusters"
    assert (
        why_not_ready("LIVE", {**ALL, "listener_manager.workers_started": 0}, ()) == "Envoy's workers have not started"
    )


def test_a_flag_is_given_once_and_the_last_wins() -> None:
    extra = ("--file-flush-interval-msec", "1", "-l", "debug", "--file-flush-interval-msec=2", "--stats-tag", "a:b")
    found = flags(EnvoySettings(concurrency=3, extra_flags=(*extra, "--enable-core-dump", "--stats-tag", "c:d")))
    names = [part for part in found if part.startswith("--") and part != "--stats-tag"]
    assert len(names) == len(set(names))
    assert found[found.index("--file-flush-interval-msec") + 1] == "2"
    assert found[found.index("--log-level") + 1] == "debug"
    assert found[found.index("--concurrency") + 1] == "3"
    assert found[-5:] == ["--enable-core-dump", "--stats-tag", "a:b", "--stats-tag", "c:d"]


def test_only_what_the_bootstrap_asks_for_is_awaited() -> None:
    assert awaited({}) == ()
    assert awaited({"dynamic_resources": {"lds_config": {}, "cds_config": {}}}) == BOTH


def _lines(mark: str, *messages: str) -> bytes:
    return "".join(f"{mark}|info|main|{message}\n" for message in messages).encode()


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1), min_size=1),
    st.data(),
)
def test_lines_survive_being_cut_anywhere(messages: list[str], data: st.DataObject) -> None:
    parser = LogParser("mark")
    raw = _lines("mark", *messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += list(parser.feed(raw[start:end]))
    found += list(parser.finish())
    assert [line.text.rstrip() for line in found] == [message[:LONGEST].rstrip() for message in messages]
    assert {line.logger for line in found} == {"main"}


def test_a_message_of_several_lines_is_one_and_cannot_forge_another() -> None:
    parser = LogParser("mark")
    raw = b"mark|error|config|first\nother|info|main|forged\nsecond\nmark|trace|http|next\nnot of a logger\n"
    first, second = parser.feed(raw)
    assert (first.level, first.logger, first.text) == ("error", "config", "first\nother|info|main|forged\nsecond")
    assert (second.level, second.logger, second.text) == ("debug", "http", "next\nnot of a logger")
    (crash,) = parser.feed(b"a library's own words\n")
    assert (crash.level, crash.logger) == ("warning", "")


def test_a_flood_is_cut_and_said_once() -> None:
    now = 0.0
    log = EnvoyLog(LogParser("mark"), lambda: now)
    with capture_logs() as logs:
        log.feed(_lines("mark", *["line"] * (int(LINES_AT_ONCE) + 500)))
        now = 10.0
        log.feed(_lines("mark", "after"))
    assert len(logs) == LINES_AT_ONCE + 2
    assert logs[-2]["lines"] == 500
    assert log.left_out_total == 500
    log.feed(b"x" * 10_000_000)  # a line without an end is not kept whole
    log.finish()
    assert len(log.last_line) <= LONGEST


def test_the_reason_of_an_end_is_the_last_error_not_the_stack_below_it() -> None:
    log = EnvoyLog(LogParser("mark"), lambda: 0.0, silent=True)
    log.feed(b"mark|critical|backtrace|Caught Segmentation fault\nmark|critical|backtrace|#0: [0x1]\n")
    assert log.last_error == "Caught Segmentation fault"
