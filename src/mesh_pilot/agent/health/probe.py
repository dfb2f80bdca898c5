"""Probes as they are written: WorkloadGroup's ``probe``, and Kubernetes' container probes, which have the same form.

``readiness_probe`` finds the one in a ProxyConfig that the control plane sent. Sources: Istio, "WorkloadGroup";
Kubernetes, "Configure Liveness, Readiness and Startup Probes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from mesh_pilot.agent.bootstrap.proxy_config import decode_field
from mesh_pilot.base.suggestions import did_you_mean

DEFAULT_PERIOD_SECONDS, DEFAULT_TIMEOUT_SECONDS = 10.0, 1.0


class ProbeError(ValueError):
    """A probe that cannot be run. The message names the field, for users."""


@attrs.frozen
class HttpCheck:
    """A GET that is to be answered with a status of 200 to 399."""

    port: int
    path: str = "/"
    host: str = ""
    """Empty: the application's address."""
    scheme: str = "http"
    """``http``, or ``https``, whose certificate is not verified."""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def default_name(self) -> str:
        """A name of what is probed, for people."""
        return f"{self.scheme.upper()} GET {self.path} on port {self.port}"


@attrs.frozen
class TcpCheck:
    """A connection that is to be accepted."""

    port: int
    host: str = ""

    @property
    def default_name(self) -> str:
        return f"TCP port {self.port}"


@attrs.frozen
class GrpcCheck:
    """A call of ``grpc.health.v1.Health/Check`` that is to be answered with SERVING."""

    port: int
    service: str = ""

    @property
    def default_name(self) -> str:
        return f"gRPC health on port {self.port}"


@attrs.frozen
class ExecCheck:
    """A command that is to end with 0."""

    command: tuple[str, ...]

    @property
    def default_name(self) -> str:
        return f"command {self.command[0]}"


Check: TypeAlias = HttpCheck | TcpCheck | GrpcCheck | ExecCheck


@attrs.frozen
class ProbeSettings:
    """A check, when it is made, and how many results decide. Times are in seconds."""

    check: Check
    initial_delay: float = 0.0
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    period: float = DEFAULT_PERIOD_SECONDS
    success_threshold: int = 1
    failure_threshold: int = 1


def parse_probe(probe: object, where: str) -> ProbeSettings:
    """Read a probe in its YAML or JSON form; ``where`` is its path in messages. Raises ProbeError."""
    known = {*_TIMES, *_CHECKS}
    found = _object(probe, where, {*known, "terminationGracePeriodSeconds"})
    methods = [name for name in _CHECKS if found.get(name) is not None]
    if len(methods) != 1:
        raise ProbeError(f"{where} needs one of {', '.join(_CHECKS)}, and has {' and '.join(methods) or 'none'}")
    method = methods[0]
    given = {field: _integer(found, name, where) for name, field in _TIMES.items()}
    # As everywhere in Istio, 0 is what is not set.
    return ProbeSettings(
        _CHECKS[method](found[method], f"{where}.{method}"), **{field: value for field, value in given.items() if value}
    )


_TIMES: Mapping[str, str] = {
    "initialDelaySeconds": "initial_delay",
    "timeoutSeconds": "timeout",
    "periodSeconds": "period",
    "successThreshold": "success_threshold",
    "failureThreshold": "failure_threshold",
}


def _http(probe: object, where: str) -> Check:
    found = _object(probe, where, {"path", "port", "host", "scheme", "httpHeaders"})
    scheme = _string(found, "scheme", where).lower() or "http"
    if scheme not in ("http", "https"):
        raise ProbeError(f"{where}.scheme is {found['scheme']!r}; write HTTP or HTTPS")
    path = _string(found, "path", where)
    headers = []
    for number, header in enumerate(_sequence(found, "httpHeaders", where)):
        place = f"{where}.httpHeaders[{number}]"
        pair = _object(header, place, {"name", "value"})
        name, value = _string(pair, "name", place), _string(pair, "value", place)
        if not name or not (name + value).isprintable() or not name.isascii() or " " in name:
            raise ProbeError(f"{place} is not a header of HTTP")
        headers.append((name, value))
    if not path.isprintable():
        raise ProbeError(f"{where}.path has a character that no path has")
    return HttpCheck(
        _port(found, where), f"/{path.removeprefix('/')}", _string(found, "host", where), scheme, tuple(headers)
    )


def _tcp(probe: object, where: str) -> Check:
    found = _object(probe, where, {"port", "host"})
    return TcpCheck(_port(found, where), _string(found, "host", where))


def _grpc(probe: object, where: str) -> Check:
    found = _object(probe, where, {"port", "service"})
    return GrpcCheck(_port(found, where), _string(found, "service", where))


def _exec(probe: object, where: str) -> Check:
    found = _object(probe, where, {"command"})
    command = _sequence(found, "command", where)
    if not command or not all(isinstance(each, str) and "\0" not in each for each in command) or not command[0]:
        raise ProbeError(f"{where}.command is not a list of a program and its arguments")
    return ExecCheck(tuple(command))


_CHECKS: Mapping[str, Callable[[object, str], Check]] = {
    "httpGet": _http,
    "tcpSocket": _tcp,
    "exec": _exec,
    "grpc": _grpc,
}


def _object(value: object, where: str, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProbeError(f"{where} is not an object")
    for key in value:
        if key not in known:
            raise ProbeError(f"{where} has no field {key!r}{did_you_mean(str(key), known)}")
    return value


def _string(found: Mapping[str, Any], name: str, where: str) -> str:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise ProbeError(f"{where}.{name} is not a string")
    return value or ""


def _sequence(found: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value = found.get(name) or ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ProbeError(f"{where}.{name} is not a list")
    return value


def _integer(found: Mapping[str, Any], name: str, where: str) -> int:
    value = found.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**31:
        raise ProbeError(f"{where}.{name} is {value!r}, no number from 0")
    return value


def _port(found: Mapping[str, Any], where: str) -> int:
    port = _integer(found, "port", where)
    if not 0 < port < 65536:
        raise ProbeError(f"{where}.port is {port}, no port of TCP")
    return port


def readiness_probe(proxy_config: bytes) -> Mapping[str, Any] | None:
    """``readinessProbe`` of an encoded ProxyConfig in its JSON form; None without one. Raises WireError."""
    found: Mapping[str, Any] | None = decode_field(proxy_config, "readinessProbe")
    return found
