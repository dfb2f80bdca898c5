"""Puts the parts of the agent together, in one tree of nurseries.

Order of the start: certificate from disk or by the credential; connection; name table and proxy settings (from disk if
no control plane answers within ``PATIENCE_SECONDS``); DNS, status; Envoy; probes and registration once it is ready.
At SIGTERM the other way round: draining in Consul, Envoy drained, deregistered.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from mesh_pilot.agent.base.handover import ENDS, Handover, own_command, self_test
from mesh_pilot.agent.base.observable import Observable, first_of
from mesh_pilot.agent.base.service_manager import ServiceManager
from mesh_pilot.agent.bootstrap.metrics_filter import metrics_filter
from mesh_pilot.agent.bootstrap.patches import (
    BootstrapPatch,
    BootstrapStatistics,
    ChosenPatches,
    choose,
    read_patches,
)
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.envoy.validation import why_envoy_refuses
from mesh_pilot.agent.envoy.warming import watch_warming
from mesh_pilot.agent.health.monitor import HealthMonitor
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.identity.material import IdentityMaterial
from mesh_pilot.agent.registration.registration import ConsulRegistration
from mesh_pilot.agent.relay.answers import Answers
from mesh_pilot.agent.relay.node_message import encode_node
from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.agent.relay.relay import Relay
from mesh_pilot.agent.relay.subscriptions import Subscriptions, hello
from mesh_pilot.agent.run.bootstrap import (
    agent_bootstrap,
    envoy_settings,
    exports_of,
    resource_node,
    termination_drain_seconds,
)
from mesh_pilot.agent.settings import AgentError, AgentSettings
from mesh_pilot.agent.status.pushing import AgentPush, resource_of
from mesh_pilot.agent.status.secure_metrics import SecureMetrics
from mesh_pilot.agent.status.server import StatusServer
from mesh_pilot.agent.traffic.reporter import TrafficReporter
from mesh_pilot.base.containment import PartSupervisor, leaves, until_done
from mesh_pilot.base.output import dropped_lines
from mesh_pilot.identity.trust.private_files import own_folder
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.net.otlp.values import Value
from mesh_pilot.net.rpc import AddressError, Servable, serve

if TYPE_CHECKING:
    from mesh_pilot.agent.dns.server import DnsServer

log = structlog.get_logger(scope="agent")

PATIENCE_SECONDS = 5.0
SOCKET_SECONDS = 5.0
"""Between looks at whether the socket for Envoy is where it was."""
ANSWERS = "answers.db"
"""The file, in the folder of the state, of what Envoy has accepted."""


async def run_agent(settings: AgentSettings, handover: Handover) -> bool:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends at once. Raises AgentError, in no group.

    True after SIGHUP: the version that is installed now is to take over what ``handover`` has then.
    """
    failure: AgentError | None = None
    is_handed_over = False
    try:
        async with _signals() as (signals, hangups):
            agent = ProxyAgent(settings, handover)
            await agent.run(signals, hangups)
            is_handed_over = agent.is_handed_over
    except* AgentError as group:
        failure = next(error for error in leaves(group) if isinstance(error, AgentError))
    if failure is not None:
        raise failure
    return is_handed_over


class ProxyAgent:
    """One agent with all its parts."""

    def __init__(self, settings: AgentSettings, handover: Handover) -> None:
        """Raises AgentError for settings that cannot be used."""
        _make_folders(settings)
        self._handover = handover
        self.is_handed_over = False
        self._settings = settings
        node, folders = settings.node, settings.folders
        self.identity = WorkloadIdentity(settings.credentials, settings.planes, folders, node_id=node.id)
        tls, metadata = self.identity.tls, self.identity.call_metadata
        self.planes = Planes(settings.planes, node.locality, tls, metadata, hello=hello(node))
        self.relay = Relay(self.planes, Answers(folders.state / ANSWERS, node.kept_for))
        self.subscriptions = Subscriptions(node, self.planes, names=settings.dns.enabled, folder=folders.state)
        inbound_only = node.type is not NodeType.ROUTER
        self.envoy = EnvoyRunner(settings.envoy, settings.ports, folders, inbound_only=inbound_only, handover=handover)
        self.traffic = TrafficReporter(self.envoy, self.planes, encode_node(node, {})) if settings.traffic else None
        self.health = HealthMonitor(
            settings, self.subscriptions.proxy_config, self.envoy.ready, self.subscriptions.report
        )
        consul = settings.consul
        self.registration: ConsulRegistration | None = None
        if consul.service is not None or consul.service_id:
            self.registration = ConsulRegistration(settings, self.health.health, self.envoy.ready)
        self.upkeep = PartSupervisor("the agent", AgentError)
        self._service_manager = ServiceManager()
        self._quit = trio.Event()
        self._dns = self._make_dns()
        self._shown: IdentityMaterial | None = None
        """The certificate that control planes have seen, or will with the next connection."""
        self.exports = Observable(exports_of(settings))
        parts: dict[str, Callable[[], object]] = {"dns": self._dns.statistics} if self._dns is not None else {}
        self.status = StatusServer(
            settings,
            {
                **parts,
                "identity": self.identity.statistics,
                "planes": self.planes.statistics,
                "relay": self.relay.statistics,
                "subscriptions": self.subscriptions.statistics,
                "envoy": self.envoy.statistics,
                "bootstrap": self._bootstrap_statistics,
                "health": self.health.statistics,
                **({"registration": self.registration.statistics} if self.registration is not None else {}),
                **self._traffic_statistics(),
                "secure_metrics": lambda: self.secure_metrics.statistics(),
                "metrics_push": lambda: self.metrics_push.statistics(),
                "upkeep": self.upkeep.statistics,
                "output": lambda: {"dropped_lines_total": dropped_lines()},
            },
            ready=self.envoy.ready,
            name_table=self.subscriptions.name_table,
            quit=self._quit.set,
            why_not_ready=lambda: self.envoy.why_not_ready,
            metrics_filter=lambda: metrics_filter(self.bootstrap.value),
            exports=lambda: self.exports.value,
        )
        self.secure_metrics = SecureMetrics(self.exports, self.status.metrics, self.identity)
        self.metrics_push = AgentPush(self.exports, self.status.metrics, self._resource, self.identity.http_client_tls)
        self.bootstrap: Observable[Mapping[str, Any]] = Observable({})
        self._patches = ChosenPatches()

    def __repr__(self) -> str:
        return f"<ProxyAgent of {self._settings.node.id}>"

    async def run(self, signals: AsyncIterator[int], hangups: AsyncIterator[int]) -> None:
        """Run all parts until the first of ``signals``, then drain. Raises AgentError, perhaps in a group.

        One of ``hangups`` ends them without a drain: another version takes over.
        """
        async with trio.open_nursery() as nursery:
            end = partial(self._end_at_signal, signals, nursery.cancel_scope)
            nursery.start_soon(until_done, "end", end)
            nursery.start_soon(self._run_envoy, name="envoy")  # one that runs already is looked after from here on
            await self.subscriptions.restore()
            await self._start_serving(nursery)
            self._handover.close_rest()
            nursery.start_soon(until_done, "service manager", self._tell_when_ready)
            if self.registration is not None:
                # Before control planes are waited for: a check that another version has renewed would end meanwhile.
                self._keep(nursery, "registration", partial(self._register, self.registration))
            nursery.start_soon(until_done, "reload", partial(self._hand_over_at_signal, hangups, nursery))
            await self._start_asking(nursery)
            await self._take_proxy_config(self.subscriptions.proxy_config.value)
            self._keep(nursery, "bootstrap", self._follow_proxy_config)
            self._keep(nursery, "secure metrics", self.secure_metrics.run)
            self._keep(nursery, "metrics push", self.metrics_push.run)
            self._keep(nursery, "health", self.health.run)
            if self.traffic is not None:
                self._keep(nursery, "traffic", self.traffic.run)
            self._keep(nursery, "warming", partial(watch_warming, self.envoy, self.subscriptions))

    async def _run_envoy(self) -> None:
        """Run Envoy. Raises AgentError where there is none."""
        envoy = self.envoy
        await self.upkeep.keep("envoy", partial(envoy.run, self.bootstrap), fatal=lambda: not envoy.has_started)

    async def _tell_when_ready(self) -> None:
        """Tell the service manager that the start, or a reload, is over."""
        if not self.envoy.ready.value:
            port = self._settings.ports.status
            where = f": http://127.0.0.1:{port}/healthz/ready says why it is not" if port else ""
            await self._service_manager.waiting(f"waits until Envoy is ready{where}")
        await self.envoy.ready.wait_for(bool)
        await self._service_manager.ready()

    async def _register(self, registration: ConsulRegistration) -> None:
        """Announce the service once Envoy can take its requests."""
        await self.envoy.ready.wait_for(bool)
        await registration.run()

    def _make_dns(self) -> DnsServer | None:
        settings = self._settings
        if not (settings.dns.enabled and settings.ports.dns):
            return None
        from mesh_pilot.agent.dns.server import DnsServer  # the library costs memory

        return DnsServer(settings.dns, settings.ports.dns, settings.node, self.subscriptions.name_table, self._handover)

    def _keep(self, nursery: trio.Nursery, name: str, run: Any) -> None:
        nursery.start_soon(self.upkeep.keep, name, run, name=name)

    async def _start_serving(self, nursery: trio.Nursery) -> None:
        """Open the socket for Envoy, and the ports. Raises AgentError where one is taken."""
        await nursery.start(self.upkeep.start, "socket", self._serve_envoy, name="socket")
        if self._settings.ports.status:
            await nursery.start(self.upkeep.start, "status", self._serve_status, name="status")
        if self._dns is not None:
            await nursery.start(self.upkeep.start, "dns", self._dns.run, name="dns")

    async def _serve_envoy(self, task_status: trio.TaskStatus[object]) -> None:
        """Serve xDS and secrets on the socket, and take load reports."""
        socket = self._settings.folders.socket
        try:
            own_folder(socket.parent)
            listeners = await self._handover.listeners("socket", f"unix://{socket}")
        except AddressError as error:
            raise AgentError(f"{error}; does another agent run on {socket.parent}?") from None
        except OSError as error:
            raise AgentError(f"{socket.parent}: {error.strerror}") from None
        services: list[Servable] = [self.relay, self.identity.secret_service()]
        if self.traffic is not None:
            services.append(self.traffic.load_reports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_socket_is_gone, socket)
            await serve(services, listeners, task_status=task_status)
            nursery.cancel_scope.cancel()

    async def _until_socket_is_gone(self, socket: Path) -> None:
        """Raise AgentError once the socket cannot be found by its path any more: the next Envoy needs another one."""
        ours = _identity(socket)
        while ours is not None and _identity(socket) == ours:  # noqa: ASYNC110  a file has no event
            await trio.sleep(SOCKET_SECONDS)
        self._handover.forget("socket")
        raise AgentError(f"{socket} was removed: it is made again")

    async def _serve_status(self, task_status: trio.TaskStatus[None]) -> None:
        listeners = await self.status.open(self._handover)
        task_status.started()
        await self.status.run(listeners)
        await trio.sleep_forever()  # it was told to stop

    async def _start_asking(self, nursery: trio.Nursery) -> None:
        """Get the identity, connect, and wait a while for the first answers."""
        await nursery.start(self.upkeep.start, "identity", self.identity.run, name="identity")
        with trio.move_on_after(PATIENCE_SECONDS):
            await self.identity.settled.wait_for(bool)
        self._shown = self.identity.material.value
        self._keep(nursery, "renewal", self._reconnect_at_renewal)
        self._keep(nursery, "trust", self._distribute_trust)
        self._keep(nursery, "relay", self.relay.run)
        self._keep(nursery, "subscriptions", self.subscriptions.run)
        self._keep(nursery, "planes", self.planes.run)
        with trio.move_on_after(PATIENCE_SECONDS):
            answered, away = self.subscriptions.is_current, self.planes.is_away
            await first_of(partial(answered.wait_for, bool), partial(away.wait_for, bool))

    async def _reconnect_at_renewal(self) -> None:
        """Have the control plane see each new certificate."""
        async for material in self.identity.material.changes():
            if material is not self._shown:
                self._shown = material
                self.planes.reconnect()

    async def _distribute_trust(self) -> None:
        """Give the identity what control planes say of whom to trust."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.subscriptions.trust_bundle.follow, self.identity.set_trust_bundle)
            nursery.start_soon(self.subscriptions.root_secret.follow, self.identity.set_root_secret)

    async def _follow_proxy_config(self) -> None:
        """Make Envoy's bootstrap again when the control plane's part of it changes."""
        async for proxy_config in self.subscriptions.proxy_config.changes():
            try:
                await self._take_proxy_config(proxy_config)
            except AgentError as error:
                log.error("cannot build the bootstrap; Envoy keeps the previous one", reason=str(error))

    async def _take_proxy_config(self, proxy_config: bytes | None) -> None:
        """Raises AgentError for a bootstrap that cannot be made."""
        self.exports.set(exports_of(self._settings, proxy_config))
        settings = envoy_settings(self._settings, proxy_config)

        async def why_refused(patches: Sequence[BootstrapPatch]) -> str:
            bootstrap = agent_bootstrap(self._settings, proxy_config, patches)
            return await why_envoy_refuses(bootstrap, settings, self._settings.folders.run)

        self._patches = await choose(read_patches(proxy_config), why_refused)
        bootstrap = agent_bootstrap(self._settings, proxy_config, self._patches.merged)
        self.envoy.settings.set(settings)
        self.bootstrap.set(bootstrap)

    def _traffic_statistics(self) -> dict[str, Callable[[], object]]:
        if self.traffic is None:
            return {}
        return {"traffic": self.traffic.statistics, "load_reports": self.traffic.load_reports.statistics}

    def _resource(self) -> Mapping[str, Value]:
        return resource_of(resource_node(self._settings, self.subscriptions.proxy_config.value))

    def _bootstrap_statistics(self) -> BootstrapStatistics:
        chosen = self._patches
        return BootstrapStatistics(tuple(patch.place for patch in chosen.merged), chosen.left_out)

    # -- the end

    async def _end_at_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_at, signals, self._quit)
            await self._quit.wait()
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            again = trio.Event()
            nursery.start_soon(_set_at, signals, again)
            nursery.start_soon(self._drain, nursery.cancel_scope)
            await again.wait()
            log.warning("ended at once by a second signal")
            nursery.cancel_scope.cancel()
        scope.cancel()

    async def _hand_over_at_signal(self, hangups: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """End without a drain for the version that is installed now, if that would start."""
        async for _ in hangups:
            await self._service_manager.reloading()
            self.status.keep_connections(False)
            reason = await self_test([*own_command(), "--check"])
            if not reason:
                break
            log.error("another version is not executed: it would not start; this one continues", reason=reason)
            self.status.keep_connections(True)
            nursery.start_soon(until_done, "service manager", self._tell_when_ready)
        if self._quit.is_set():
            return  # it was told to end meanwhile, and another version would not know
        log.info("another version of the agent takes over")
        self.status.stop.set()
        with trio.move_on_after(PATIENCE_SECONDS):
            if self._settings.ports.status:
                await self.status.stopped.wait()
        if self._quit.is_set():
            return
        self.envoy.leave()
        self.is_handed_over = True
        nursery.cancel_scope.cancel()

    async def _drain(self, scope: trio.CancelScope) -> None:
        """Have others send nothing more, then let connections end."""
        log.info("agent ends: draining")
        self.status.is_draining = True
        self.status.keep_connections(False)
        await self._service_manager.stopping()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.health.drain)
                if self.registration is not None:
                    nursery.start_soon(self.registration.drain)
            await self.envoy.drain(termination_drain_seconds(self._settings, self.subscriptions.proxy_config.value))
            if self.traffic is not None:
                await self.traffic.end()
            if self.registration is not None:
                await self.registration.deregister()
        except Exception:  # ends all the same
            log.exception("the drain has failed")
        scope.cancel()


async def _set_at(signals: AsyncIterator[int], event: trio.Event) -> None:
    async for _ in signals:
        event.set()
        return


@asynccontextmanager
async def _signals() -> AsyncIterator[tuple[AsyncIterator[int], AsyncIterator[int]]]:
    """Signals that end the agent, and those that have another version take over."""
    with (
        trio.open_signal_receiver(*ENDS) as ends,
        trio.open_signal_receiver(signal.SIGHUP) as hangups,
    ):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # those that came while this version started
        yield ends, hangups


def _make_folders(settings: AgentSettings) -> None:
    for folder in (settings.folders.state, settings.folders.run):
        try:
            own_folder(folder)
        except OSError as error:
            raise AgentError(f"{folder}: {error.strerror}; it must be a folder of the user that this runs as") from None


def _identity(file: Path) -> tuple[int, int] | None:
    """The file that a name stands for; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
