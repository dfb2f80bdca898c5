"""Envoy's statistics as increases: sums are the truth, or less and marked, whatever ends in between."""

from __future__ import annotations

from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.traffic.increases import Increases
from mesh_pilot.agent.traffic.statistics import is_repeated, subject_of
from mesh_pilot.model import traffic
from mesh_pilot.model.traffic import NO_ALLOW_MATCHED, Counter, RowKind, TrafficReport

WEB = "outbound|80||web.shop"
CLUSTER, LISTENER, POLICY = RowKind.CLUSTER, RowKind.LISTENER, RowKind.POLICY


def page(**values: int) -> str:
    """A page of the statistics of a cluster."""
    return "".join(f"cluster.{WEB}.{name}: {value}\n" for name, value in values.items())


def counted(report: TrafficReport | None) -> dict[str, dict[str, int]]:
    """The rows of a report by name."""
    assert report is not None
    return {row.name: {each.name.lower(): count for each, count in row.counts.items()} for row in report.rows}


@pytest.mark.parametrize(
    ("name", "kind", "subject", "counter"),
    [
        (f"cluster.{WEB}.upstream_rq_completed", CLUSTER, WEB, Counter.REQUESTS),
        (f"cluster.{WEB};.upstream_rq_5xx", CLUSTER, WEB, Counter.ERRORS),
        ("cluster.inbound|8080||.upstream_rq_4xx", CLUSTER, "inbound|8080||", Counter.CLIENT_ERRORS),
        ("cluster.BlackHoleCluster.upstream_cx_total", CLUSTER, "BlackHoleCluster", Counter.CONNECTIONS),
        ("http.outbound_0.0.0.0_80;.no_route", LISTENER, "outbound_0.0.0.0_80", Counter.NO_ROUTE),
        ("http.inbound_0.0.0.0_80.rbac.denied", LISTENER, "inbound_0.0.0.0_80", Counter.DENIED),
        ("http.a.b.rbac.policy.ns[x]-policy[a.b]-rule[0].denied", POLICY, "ns[x]-policy[a.b]-rule[0]", Counter.DENIED),
        ("http.a.rbac.policy.x.allowed", POLICY, "x", Counter.ALLOWED),
        ("http.a.rbac.policy.rbac.policy.x.denied", POLICY, "rbac.policy.x", Counter.DENIED),
        ("tcp.rbac.denied", LISTENER, "tcp", Counter.DENIED),
    ],
)  # fmt: skip
def test_a_statistic_counts_something_of_a_subject(name: str, kind: RowKind, subject: str, counter: Counter) -> None:
    assert subject_of(name) == ((kind, subject), counter)


@pytest.mark.parametrize(
    "name",
    [
        "cluster.xds-grpc.upstream_rq_completed",
        "cluster.agent;.upstream_rq_5xx",
        "http.admin.downstream_rq_completed",
        "http.stats.downstream_rq_5xx",
        "http.in.rbac.allowed",
        f"cluster.{WEB}.upstream_rq_503",
        "server.uptime",
        "tcp.outbound|80||a.rbac.denied",
        "",
    ],
)
def test_other_statistics_are_in_no_report(name: str) -> None:
    assert subject_of(name) is None


def test_numbers_that_come_again_by_the_origin_of_requests_count_once() -> None:
    host = "outbound|80||web.internal"
    names = (host, f"{host}.internal", f"{host}.external", f"{host}.retry", f"{host}.canary", f"{host}.zone.a.b")
    values = {f"cluster.{name}.upstream_rq_5xx": 1 for name in names}
    values[f"cluster.{host}.upstream_cx_none_healthy"] = 1
    assert [is_repeated(name, values) for name in values] == [False, *[True] * 5, False]
    increases = Increases()
    increases.read("\n".join(f"{name}: {value}" for name, value in values.items()))
    assert counted(increases.take(10)) == {host: {"errors": 1, "none_healthy": 1}}


def test_only_what_has_changed_is_reported() -> None:
    increases = Increases()
    increases.read(page(upstream_rq_completed=3, upstream_cx_total=1, upstream_rq_active=0))
    report = increases.take(10)
    assert counted(report) == {WEB: {"requests": 3, "connections": 1}}
    assert report is not None and report.follows_gap, "the agent is new"
    increases.read(page(upstream_rq_completed=3, upstream_cx_total=1, upstream_rq_active=0))
    assert increases.take(10) is None
    increases.read(page(upstream_rq_completed=5, upstream_cx_total=1, upstream_rq_active=2))
    report = increases.take(10)
    assert counted(report) == {WEB: {"requests": 2, "in_flight": 2}}
    assert report is not None and not report.follows_gap
    increases.tell_all()
    assert counted(increases.take(10)) == {WEB: {"in_flight": 2}}
    increases.begin(counts_first_page=True)
    report = increases.take(10)
    assert counted(report) == {WEB: {"in_flight": 0}}
    assert report is not None and report.follows_gap


def test_an_envoy_that_ran_before_counts_from_its_first_page() -> None:
    increases = Increases()
    assert increases.take(10) is None, "there may be more that is lost"
    increases.begin(counts_first_page=False)
    increases.read(page(upstream_rq_completed=3))
    assert counted(increases.take(10)) == {}
    increases.read(page(upstream_rq_completed=4))
    assert counted(increases.take(10)) == {WEB: {"requests": 1}}


def test_a_cluster_that_comes_again_counts_from_0() -> None:
    increases = Increases()
    increases.read(page(upstream_rq_completed=30))
    increases.take(10)
    increases.read("")
    assert increases.take(10) is None
    increases.read(page(upstream_rq_completed=20))
    report = increases.take(10)
    assert counted(report) == {WEB: {"requests": 20}}
    assert report is not None and not report.follows_gap
    increases.read(page(upstream_rq_completed=5))  # it went and came between two pages
    report = increases.take(10)
    assert counted(report) == {WEB: {"requests": 5}}
    assert report is not None and report.follows_gap


def denials(listener: int, **rules: int) -> str:
    rows = "".join(f"http.in.rbac.policy.{name}.denied: {count}\n" for name, count in rules.items())
    return f"http.in.rbac.denied: {listener}\n{rows}"


def test_what_no_rule_of_allow_matched_is_what_the_rules_leave() -> None:
    increases = Increases()
    increases.read(denials(5))
    assert counted(increases.take(10)) == {"in": {"denied": 5}}, "perhaps no rule is counted"
    increases.read(denials(7, a=1))
    assert counted(increases.take(10)) == {"in": {"denied": 2}, "a": {"denied": 1}, NO_ALLOW_MATCHED: {"denied": 6}}
    increases.read(denials(8, a=3))  # its rule had counted one more when it was read
    assert counted(increases.take(10)) == {"in": {"denied": 1}, "a": {"denied": 2}}
    increases.read(denials(10, a=3))
    assert counted(increases.take(10)) == {"in": {"denied": 2}, NO_ALLOW_MATCHED: {"denied": 1}}


def test_rows_are_bounded_and_what_is_too_much_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.agent.traffic.increases.MAX_ROWS", 2)
    increases = Increases()
    increases.read("")
    increases.take(10)
    increases.read("".join(f"cluster.c{number}.upstream_cx_total: 1\n" for number in range(3)))
    report = increases.take(10)
    assert report is not None and report.follows_gap
    assert len(report.rows) == 2


def test_lines_that_are_no_numbers_are_passed_over() -> None:
    increases = Increases()
    increases.read("cluster.a.upstream_cx_total: No recorded values\n\ncluster.b.upstream_cx_total: 1\nx\n: \n")
    assert counted(increases.take(10)) == {"b": {"connections": 1}}


class Story:
    """An Envoy that counts, an agent that reads it, a control plane that adds up, and what may befall each."""

    def __init__(self) -> None:
        self.truth: Tally[str] = Tally()
        self.told: Tally[str] = Tally()
        self.is_marked = False
        self.envoy: Tally[str] = Tally()
        self.increases = Increases()
        self.read()
        report = self.increases.take(10)  # the first says that the agent is new
        assert report is not None and report.follows_gap and not report.rows

    def serve(self, cluster: str, count: int) -> None:
        self.truth[cluster] += count
        self.envoy[cluster] += count

    def read(self) -> None:
        lines = [f"cluster.{name}.upstream_rq_completed: {count}" for name, count in self.envoy.items()]
        self.increases.read("\n".join(lines))

    def report(self, arrives: bool = True) -> None:
        report = self.increases.take(10)
        if not arrives:
            self.increases.lost()
        if report is not None and arrives:
            self.is_marked |= report.follows_gap
            for row in report.rows:
                self.told[row.name] += row.counts[Counter.REQUESTS]

    def crash(self) -> None:
        self.envoy = Tally()
        self.increases.begin(counts_first_page=True)

    def hot_restart(self, taken_over: int) -> None:
        """The next Envoy begins with some of what this one counted last."""
        self.envoy = Tally({name: min(count, taken_over) for name, count in self.envoy.items()})
        self.increases.begin(counts_first_page=False)

    def agent_restart(self) -> None:
        """The next agent continues with the Envoy that runs."""
        self.increases = Increases()
        self.increases.begin(counts_first_page=False)


STEPS = st.one_of(
    st.tuples(st.just("serve"), st.sampled_from("abc"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["read", "report", "crash", "agent_restart"])),
    st.tuples(st.just("report"), st.booleans()),
    st.tuples(st.just("hot_restart"), st.integers(0, 9)),
)


@given(st.lists(STEPS, max_size=40))
def test_sums_are_the_truth_or_less_and_marked(steps: list[tuple[object, ...]]) -> None:
    story = Story()
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
        assert all(story.told[cluster] <= count for cluster, count in story.truth.items())
    story.read()
    story.report()
    assert all(story.told[cluster] <= count for cluster, count in story.truth.items())
    assert story.told == story.truth or story.is_marked


@given(st.lists(st.one_of(st.tuples(st.just("serve"), st.sampled_from("abc"), st.integers(1, 5)), st.just(("read",)))))
def test_while_all_live_nothing_is_lost_and_nothing_is_marked(steps: list[tuple[object, ...]]) -> None:
    story = Story()
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
    story.read()
    story.report()
    assert story.told == story.truth
    assert not story.is_marked


def test_a_report_survives_the_wire() -> None:
    increases = Increases()
    increases.read(page(upstream_rq_completed=300, upstream_rq_5xx=2))
    report = increases.take(12.5)
    assert report is not None
    assert traffic.read_report(traffic.encode_report(report)) == report
