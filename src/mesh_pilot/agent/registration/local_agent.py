"""The HTTP API of the Consul agent on this machine: the few calls of a registration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio

from mesh_pilot.agent.settings import ConsulAgentSettings

if TYPE_CHECKING:
    import httpx

_CALL_SECONDS = 5.0


class RegistrationError(Exception):
    """A call that failed. The message is for users, and says what to do."""


class ConsulAway(RegistrationError):
    """No answer from the agent."""


class UnknownToConsul(RegistrationError):
    """A service or check that the agent does not have."""


class LocalConsulAgent:
    """Calls to the agent, each with the token that is in the file now."""

    def __init__(self, settings: ConsulAgentSettings) -> None:
        self._settings = settings
        self._http: httpx.AsyncClient | None = None

    async def service(self, service_id: str) -> Mapping[str, Any]:
        """A service that is registered at this agent. Raises RegistrationError, UnknownToConsul if there is none."""
        found: Mapping[str, Any] = (await self._call("GET", f"/v1/agent/service/{quote(service_id, safe='')}")).json()
        return found

    async def register(self, definition: Mapping[str, Any]) -> None:
        """Register a service, or replace it. Raises RegistrationError."""
        await self._call("PUT", "/v1/agent/service/register", json=definition)

    async def register_check(self, definition: Mapping[str, Any]) -> None:
        """Add a check. Raises RegistrationError."""
        await self._call("PUT", "/v1/agent/check/register", json=definition)

    async def deregister(self, service_id: str) -> None:
        """Remove a service with its checks. Raises RegistrationError."""
        await self._call("PUT", f"/v1/agent/service/deregister/{quote(service_id, safe='')}")

    async def check_status(self, check_id: str) -> str:
        """The status of a check; empty if the agent has none of this id. Raises RegistrationError."""
        checks = (await self._call("GET", "/v1/agent/checks")).json()
        return str((checks.get(check_id) or {}).get("Status", ""))

    async def update_check(self, check_id: str, status: str, output: str) -> None:
        """Renew a TTL check. Raises RegistrationError, UnknownToConsul if the agent has no such check."""
        body = {"Status": status, "Output": output}
        await self._call("PUT", f"/v1/agent/check/update/{quote(check_id, safe='')}", json=body)

    async def passing(self, service: str, index: str, seconds: float) -> tuple[list[Mapping[str, Any]], str]:
        """The healthy instances in the catalog once it differs from ``index``, with the new index.

        Raises RegistrationError.
        """
        parameters = {"passing": "1", "wait": f"{seconds:g}s", **({"index": index} if index else {})}
        reply = await self._call(
            "GET", f"/v1/health/service/{quote(service, safe='')}", params=parameters, seconds=2 * seconds
        )
        return reply.json(), reply.headers.get("x-consul-index", "")

    async def _call(self, method: str, path: str, *, seconds: float = _CALL_SECONDS, **more: Any) -> httpx.Response:
        import httpx

        where = f"Consul's agent at {self._settings.address}"
        try:
            headers = {"x-consul-token": token} if (token := await self._token()) else {}
            reply = await self._client().request(method, path, headers=headers, timeout=seconds, **more)
        except httpx.TimeoutException:
            raise ConsulAway(f"{where} does not answer within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConsulAway(f"{where} is away: {str(error) or type(error).__name__}") from None
        if reply.is_success:
            try:
                reply.json() if method == "GET" else None
            except ValueError:
                raise RegistrationError(f"what answers at {self._settings.address} is not Consul") from None
            return reply
        said = " ".join(reply.text.split())[:200]
        if reply.status_code in (401, 403):
            raise RegistrationError(f"{where} refuses {method} {path}: {said}; {self._advice(said)}")
        # Consul before 1.10 answers 500 for an id that it does not know.
        unknown = reply.status_code == 404 or "does not have associated TTL" in said or "Unknown service" in said
        kind = UnknownToConsul if unknown else RegistrationError
        raise kind(f"{where} answers {method} {path} with {reply.status_code}: {said}")

    def _advice(self, said: str) -> str:
        if self._settings.token_file is None:
            return "give a token that may service:write"
        if "not found" in said.lower():
            return f"the token in {self._settings.token_file} ended or was never valid: replace it"
        return f"the token in {self._settings.token_file} needs service:write on it"

    async def _token(self) -> str:
        path = self._settings.token_file
        if path is None:
            return ""
        try:
            return (await trio.to_thread.run_sync(path.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RegistrationError(f"cannot read the token of Consul: {error}") from None

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            address = self._settings.address
            limits = httpx.Limits(max_keepalive_connections=0)  # calls are rare, and Consul counts connections
            if address.startswith("unix:"):
                socket = "/" + address.removeprefix("unix:").lstrip("/")
                transport = httpx.AsyncHTTPTransport(uds=socket, trust_env=False, limits=limits)
                base = "http://localhost"
            else:
                base = address if "://" in address else f"http://{address}"
                is_tls = base.startswith("https:")
                transport = httpx.AsyncHTTPTransport(trust_env=False, verify=is_tls, limits=limits)
            self._http = httpx.AsyncClient(transport=transport, base_url=base, trust_env=False)
        return self._http
