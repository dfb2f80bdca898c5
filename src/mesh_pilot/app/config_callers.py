"""Admission of those that read all configuration over MCP and xDS, and of those that dial the MCP sink and write it.

A workload only needs the resources of its proxy, which it gets over xDS. So both are for identities that an operator
named: the root namespace's (readers only) and those in ``mesh.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.identity.authenticators.denials import MAX_TEXT
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable, Caller, host_of, is_local
from mesh_pilot.model.spiffe import Identity, parse_identity
from mesh_pilot.net.rpc import GRPCError, ServerStream, Status
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="security")

Call = ServerStream[Any, Any]


@attrs.frozen(eq=False)
class ConfigCallers:
    """Admits the callers of both. ``serve_config``: everybody who reaches a gRPC port may read."""

    caller: Callable[[Call], Any]
    """Finds out who calls; raises AuthenticationError and AuthenticatorUnavailable."""
    mesh: Callable[[], MeshConfig]
    """The mesh config as it is now."""
    serve_config: bool = False
    _logged: LogLimiter = attrs.field(factory=LogLimiter)

    async def admit_reader(self, call: Call) -> None:
        """Raise GRPCError for a caller that may not read configuration."""
        if self.serve_config:
            return
        caller, reason = await self._caller(call)
        mesh = self.mesh()
        is_here = not call.peer.tls and is_local(call.peer.address)
        if not reason and is_here:
            return
        if caller is not None:
            if caller.identity.namespace == mesh.root_namespace or is_among(caller.identity, mesh.config_readers, mesh):
                return
            reason = f"{caller.identity} is not one of them"
        raise self._refused(
            call,
            "configuration refused",
            f"configuration is served to identities of namespace {mesh.root_namespace}, to those that configReaders of "
            f"the mesh config names, and to plaintext clients on the same machine; {reason or NOTHING_SHOWN}. "
            "--serve-config serves it to everybody",
        )

    async def admit_writer(self, call: Call) -> None:
        """Raise GRPCError for a caller that may not write configuration: plaintext is served on loopback only."""
        if not call.peer.tls and is_local(call.peer.address):
            return
        caller, reason = await self._caller(call)
        mesh = self.mesh()
        if caller is not None:
            if is_among(caller.identity, mesh.config_writers, mesh):
                return
            reason = f"{caller.identity} is not one of them"
        raise self._refused(
            call,
            "configuration server refused",
            f"this port takes configuration from identities that configWriters of the mesh config names; "
            f"{reason or NOTHING_SHOWN}",
        )

    async def _caller(self, call: Call) -> tuple[Caller | None, str]:
        """The caller, or why its evidence is refused. Raises GRPCError if the caller cannot be verified now."""
        try:
            return await self.caller(call), ""
        except AuthenticationError as error:
            return None, str(error)
        except AuthenticatorUnavailable as error:
            raise GRPCError(Status.UNAVAILABLE, str(error)) from None

    def _refused(self, call: Call, event: str, text: str) -> GRPCError:
        peer = call.peer.address
        suppressed = self._logged.admit((host_of(peer), event), trio.current_time())
        if suppressed is not None:
            more = {"suppressed": suppressed} if suppressed else {}
            log.warning(event, peer=peer, reason=text[: MAX_TEXT * 2], **more)
        return GRPCError(Status.PERMISSION_DENIED, text)


NOTHING_SHOWN = "the caller shows no identity"


def is_among(identity: Identity, named: Sequence[str], mesh: MeshConfig) -> bool:
    """True if a list of SPIFFE ids names an identity, by the mesh's trust domain or an alias."""
    for each in map(parse_identity, named):
        if each is None or each.trust_domain not in (mesh.trust_domain, *mesh.trust_domain_aliases):
            continue
        if (each.namespace, each.service_account) == (identity.namespace, identity.service_account):
            return True
    return False
