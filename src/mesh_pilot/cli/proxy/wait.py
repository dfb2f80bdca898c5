"""``mesh-pilot proxy wait``: wait until the proxy next to it is ready, as ``pilot-agent wait``.

An injected sidecar runs it after its start where ``holdApplicationUntilProxyStarts`` is set: Kubernetes starts the
containers after it when it ended.
"""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.options import duration


@click.command("wait", context_settings={"show_default": True})
@click.option("--url", default="http://localhost:15021/healthz/ready", help="Where readiness is asked for.")
@click.option("--timeout", type=duration, default="60s", help="Give up after this long.")
@click.option("--period", type=duration, default="500ms", help="Ask so often.")
@click.option("--request-timeout", type=duration, default="500ms", help="Longest wait for an answer.")
def command(url: str, timeout: float, period: float, request_timeout: float) -> None:
    """Wait until the proxy on this machine is ready. Exits with 1 if it is not in time."""
    import time
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url: {url!r} is not a URL such as http://localhost:15021/healthz/ready")
    ask, end, reason = build_opener(ProxyHandler({})), time.monotonic() + timeout, ""
    while True:
        try:
            with ask.open(url, timeout=request_timeout):
                return
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error)
        if time.monotonic() + period > end:
            raise click.ClickException(f"the proxy is not ready after {timeout:g} s: {reason}")
        time.sleep(period)
