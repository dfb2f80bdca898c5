"""Makes the pictures of docs/metrics.md: ``python -m tools.picture_monitoring``, in eight minutes.

A control plane and an Envoy with its agent run, a real Prometheus scrapes them and evaluates the rules of
``samples/monitoring``, and a file is edited; after a minute another is broken and stays so. Then each panel of
``dashboard.json`` is drawn with what Prometheus answers to its queries, at its place, as Grafana would; the page of
alerts is Prometheus' own, in Chromium.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.support.ports import free_ports

ROOT = Path(__file__).parents[1]
MONITORING, TO = ROOT / "samples" / "monitoring", ROOT / "docs" / "monitoring"
COMMAND = [sys.executable, "-m", "mesh_pilot.cli"]
SECONDS, STEP = 460, 5
CELL, ROW = 50, 24
COLOURS = ("#73bf69", "#5794f2", "#f2cc0c", "#ff780a", "#b877d9", "#f2495c", "#8ab8ff", "#ca95e5")
BROKEN = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: broken}\nspec: {hosts: 5}\n"

OPENED = ".alert-danger + .alert_details, .alert_annotations { display: table-row !important }"
"""Opens the alert that fires, as a click does."""

Series = list[tuple[str, list[tuple[float, float]]]]


def record(folder: Path) -> None:
    config = Path(shutil.copytree(ROOT / "samples/hello/config", folder / "config"))
    http, grpc, metrics, status, admin, ready, stats, prometheus = free_ports(8)
    plane = f"discovery --config-dir config --state-dir state --http-addr 127.0.0.1:{http} --grpc-addr 127.0.0.1:{grpc}"
    plane += f" --secure-grpc-addr 127.0.0.1:0 --monitoring-addr 127.0.0.1:{metrics}"
    agent = f"proxy sidecar --plaintext --pilot 127.0.0.1:{grpc} --name web-1 --interception NONE --ip 127.0.0.2"
    agent += f" --status-port {status} --admin-port {admin} --readiness-port {ready} --prometheus-port {stats}"
    agent += " --state-dir agent --run-dir run"
    jobs = {"mesh-pilot": metrics, "mesh-pilot-agents": status}
    settings = {
        "global": {"scrape_interval": f"{STEP}s", "scrape_timeout": f"{STEP}s", "evaluation_interval": f"{STEP}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"localhost:{port}"]}]} for job, port in jobs.items()
        ],
    }
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    server = f"prometheus --config.file=prometheus.yml --web.listen-address=127.0.0.1:{prometheus}".split()
    address = f"http://127.0.0.1:{prometheus}"
    with (folder / "log").open("w") as log:
        commands = ([*COMMAND, *plane.split()], [*COMMAND, *agent.split()], server)
        started = [subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) for command in commands]
        try:
            text = (config / "hello.yaml").read_text()
            for second in range(0, SECONDS, STEP):
                time.sleep(STEP)
                if second == 60:
                    (config / "broken.yaml").write_text(BROKEN)
                if second % 20 == 0:
                    (config / "hello.yaml").write_text(text.replace("the mesh", f"the mesh, {second}"))
            dashboard = json.loads((MONITORING / "dashboard.json").read_text())
            (TO / "dashboard.svg").write_text(drawn(dashboard, address), encoding="utf-8")
            with urlopen(f"{address}/classic/alerts") as page:
                html = page.read().decode()
            head = f'<head><base href="{address}/"><style>{OPENED}</style>'
            (folder / "alerts.html").write_text(html.replace("<head>", head), encoding="utf-8")
            command = ["chromium", "--headless", "--no-sandbox", "--window-size=1100,940", "--hide-scrollbars"]
            command += [f"--user-data-dir={folder / 'chromium'}", f"--screenshot={TO / 'alerts.png'}"]
            subprocess.run([*command, str(folder / "alerts.html")], check=True, stderr=log)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


def drawn(dashboard: dict[str, Any], prometheus: str) -> str:
    """The dashboard as SVG."""
    end = time.time()
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW
    shapes = [f'<rect width="{24 * CELL}" height="{height}" fill="#111217"/>']
    for panel in panels:
        at = panel["gridPos"]
        x, y, width, tall = at["x"] * CELL, at["y"] * ROW, at["w"] * CELL - 6, at["h"] * ROW - 6
        found = [pair for target in panel.get("targets", ()) for pair in asked(prometheus, target, end)]
        inner = panel_of(panel, found, width, tall, end)
        shapes.append(f'<svg x="{x}" y="{y}" width="{width}" height="{tall}">{"".join(inner)}</svg>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * CELL} {height}" role="img">'
    style = "<style>text{font:11px sans-serif;fill:#ccccdc}.t{font-weight:600}.n{font-size:26px}path{fill:none}</style>"
    return f"{head}<title>{escape(dashboard['title'])}</title>{style}\n" + "\n".join(shapes) + "\n</svg>\n"


def asked(prometheus: str, target: dict[str, Any], end: float) -> Series:
    """The series of a query, with their legends."""
    query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "30s")
    about = urlencode({"query": query, "start": end - SECONDS + 30, "end": end, "step": STEP})
    with urlopen(f"{prometheus}/api/v1/query_range?{about}") as answer:
        found = json.load(answer)["data"]["result"]
    series: Series = []
    for each in found:
        metric: dict[str, str] = each["metric"]
        legend = target.get("legendFormat", "").replace("__auto", "")
        for label in re.findall(r"{{(\w+)}}", legend):
            legend = legend.replace(f"{{{{{label}}}}}", metric.get(label, ""))
        values = [(at, float(value)) for at, value in each["values"] if math.isfinite(float(value))]
        series.append((legend.strip() or ", ".join(metric.values()), values))
    return [(name, values) for name, values in series if values]


def panel_of(panel: dict[str, Any], series: Series, width: int, tall: int, end: float) -> Iterator[str]:
    title = escape(panel["title"])
    if panel["type"] == "row":
        yield f'<text class="t" x="4" y="{ROW - 8}">{title}</text>'
        return
    yield f'<rect width="{width}" height="{tall}" rx="3" fill="#181b1f"/><text class="t" x="8" y="16">{title}</text>'
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    if panel["type"] == "stat":
        value = series[0][1][-1][1] if series else math.nan
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        colour = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
        fill = {"green": "#37872d", "red": "#c4162a"}.get(colour, "#e0b400")
        yield f'<rect y="22" width="{width}" height="{tall - 22}" rx="3" fill="{fill}"/>'
        yield f'<text class="n" x="{width / 2}" y="{tall / 2 + 20}" text-anchor="middle">{shown(value, unit)}</text>'
        return
    top = max((value for _, values in series for _, value in values), default=0) or 1
    low, right, plot = tall - 24, width - 8, tall - 52
    yield f'<path d="M46 {low}H{right}M46 {low - plot}H{right}" stroke="#2c3235"/>'
    yield f'<text x="42" y="{low - plot + 4}" text-anchor="end">{shown(top, unit)}</text>'
    yield f'<text x="42" y="{low + 4}" text-anchor="end">0</text>'
    names = []
    for number, (name, values) in enumerate(series[:8]):
        colour = COLOURS[number % len(COLOURS)]
        places = (
            (46 + (at - end + SECONDS) / SECONDS * (right - 46), low - value / top * plot) for at, value in values[::2]
        )
        points = "L".join(f"{x:.0f} {y:.0f}" for x, y in places)
        yield f'<path d="M{points}" stroke="{colour}" stroke-width="1.5"/>'
        names.append(f'<tspan fill="{colour}">{escape(name)}</tspan>')
    yield (
        f'<text x="46" y="{tall - 8}">{"  ".join(names)}</text>'
        if series
        else f'<text x="50" y="{low - 8}">no data</text>'
    )


def shown(value: float, unit: str) -> str:
    """A number as a person reads it."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s" and value >= 86400:
        return f"{value / 86400:.0f} d"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    size, prefix = next((pair for pair in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if value >= pair[0]), (1, ""))
    return f"{value / size:.3g}{prefix}"


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        try:
            record(Path(work))
        except BaseException:
            print(Path(work, "log").read_text()[-3000:], file=sys.stderr)
            raise
