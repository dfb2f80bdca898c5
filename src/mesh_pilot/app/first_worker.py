"""The first worker, built: it alone has sources, keeps the state, leads other workers, and answers people.

The order, and why:

1. Mistakes in the settings, then the ports: both end the start before anything is written.
2. The sources in order of precedence: those of the settings, then those that follow what the others say (keys of
   issuers, hosts of gateways, modules, roots, workloads that register). The World expects all of them before any object
   comes, as their order decides between two objects of one name.
3. The core. Hooks on the reducer run in the order in which they are added: sources, then serving, then reports.
4. The state of the last run, once all hooks are there, so that each of them hears of it.
5. The pages, which read everything.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

import attrs
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.app.access import access_files, tls_of, web_port
from mesh_pilot.app.acme import acme_source, answer_by_gateways
from mesh_pilot.app.acme import revised as acme_revised
from mesh_pilot.app.config_cluster import cluster_source, config_access, follow_mesh, own_cluster_id, tell_mesh
from mesh_pilot.app.config_store import config_store_of, http_limits
from mesh_pilot.app.core import Core, core_of, election_of, reducer_of, serve_debug_types
from mesh_pilot.app.faults import excuse, known_mesh
from mesh_pilot.app.identity import Identities, federation_of, open_identities
from mesh_pilot.app.registration import registrar_of
from mesh_pilot.app.serving import ControlPlane
from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.app.sockets import Addresses, Sockets, open_sockets
from mesh_pilot.app.sources import (
    ConfigSourcesWatch,
    ExtensionModules,
    NetworkGatewayHosts,
    PolicyKeySets,
    check_settings,
    module_folder,
    short_name_domain,
    sink_server,
    source_list,
)
from mesh_pilot.app.state import past_proxies, restore
from mesh_pilot.app.status import live_objects, write_status
from mesh_pilot.base.later import load
from mesh_pilot.identity.authority.authority import root_for_this_run
from mesh_pilot.net.http.connection import App
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc.net import address_of
from mesh_pilot.net.rpc.tls import TlsSource
from mesh_pilot.ops.monitoring import metrics_of, monitoring_app
from mesh_pilot.ops.observers.condition_log import ConditionLog
from mesh_pilot.ops.observers.outcome_watch import OutcomeWatch
from mesh_pilot.ops.plane.state import PlaneProgress, PlaneState
from mesh_pilot.ops.web.later_app import LaterApp
from mesh_pilot.replicas.election.base import Election
from mesh_pilot.replicas.registration.registrar import Registrar
from mesh_pilot.replicas.workers.questions import Answer
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.quarantine.verdicts import SOURCE as QUARANTINE
from mesh_pilot.safety.state.recorder import Recorded, Recorder
from mesh_pilot.safety.state.revision_log import Effects
from mesh_pilot.sources.acme.source import AcmeSource
from mesh_pilot.sources.base.contract import Source
from mesh_pilot.sources.base.supervisor import Supervising, Supervisor
from mesh_pilot.sources.files.source import FileSource
from mesh_pilot.sources.gateway_hosts.source import GatewayHosts
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.wasm.source import ModuleSource
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.host_admission import HostAdmission
from mesh_pilot.world.host_ownership import HostOwnership
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from mesh_pilot.app.proxy_accounts import ProxyAccounts
    from mesh_pilot.app.shared_owners import SharedOwners
    from mesh_pilot.app.webhooks import Webhooks
    from mesh_pilot.kubernetes.status.live import LiveObjects
    from mesh_pilot.kubernetes.status.writer import StatusWriter
    from mesh_pilot.net.otlp.push import MetricsPush
    from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor
    from mesh_pilot.sources.mcp.sink_server import SinkServer

Port = tuple[HttpServer, Sequence[trio.SocketListener]]


@attrs.frozen(kw_only=True, eq=False)
class _Inputs:
    """The sources, and what they are built from."""

    world: World
    identities: Identities
    sources: Sequence[Source]
    """In order of precedence."""
    guarded: Sequence[Source]
    """The ones whose implausible losses are held."""
    hooks: Sequence[Callable[[Published], None]]
    """The way in which sources that follow others hear of a revision."""
    short_names_in: str
    """The domain of bare host names; empty: that of their namespace's services."""
    live: LiveObjects | None
    """The objects in Kubernetes whose status is written; None: no status is."""
    accounts: ProxyAccounts | None
    """The accounts of proxies, for the Kubernetes that holds configuration; None without one."""
    sink: SinkServer | None
    election: Election
    registrar: Registrar
    acme: AcmeSource


@attrs.frozen(kw_only=True, eq=False)
class FirstWorker:
    """The parts that only the first worker has."""

    supervisors: Sequence[Supervisor]
    """One for each source."""
    sink: SinkServer | None
    """The source that sources of MCP connect to; None: it is off."""
    election: Election
    owners: HostOwnership
    shared_owners: SharedOwners | None
    """None: replicas have no store in common."""
    recorder: Recorder | None
    """None: no state is kept."""
    outcomes: OutcomeWatch | None
    """None if traffic is not counted."""
    workers: WorkerSupervisor | None
    """The other workers; None: this is the only one."""
    webhooks: Webhooks | None
    ports: Mapping[str, Port]
    """The HTTP servers, each with its listeners, by name."""
    web: App
    """The app of the web port, which the admin socket serves too."""
    ask: Answer
    """Asks all workers."""
    metrics_push: MetricsPush | None


async def first_worker(
    settings: Settings, more_sources: Sequence[Source], stack: ExitStack
) -> tuple[ControlPlane, Core, FirstWorker]:
    """Build the first worker. ``stack`` gives back what it opens. Raises StartError."""
    # In the order that the module's docstring has, with the reasons.
    faults, access, tls = check_settings(settings), access_files(settings.access), tls_of(settings.access)
    config_store = config_store_of(settings)
    mesh = await known_mesh(settings, faults)
    sockets = await open_sockets(settings)
    stack.callback(sockets.close)
    if settings.workers.count > 1:
        settings = _with_shared_root(settings)
    inputs = await _inputs(settings, sockets.addresses(), mesh, more_sources, stack)
    owners = HostOwnership(inputs.world, is_synced=lambda: reducer.synced)
    reducer = _reducer(settings, mesh, inputs, owners)
    core = core_of(
        settings,
        sockets.addresses(),
        inputs.identities,
        inputs.world,
        reducer,
        inputs.registrar.tell,
        leads=True,
    )
    reducer.on_publish(ConditionLog(inputs.world).published)
    outcomes = None
    if core.traffic is not None:
        settle = timedelta(minutes=1 if settings.workers.count > 1 else 0)
        outcomes = OutcomeWatch(core.world, core.traffic.memory, settle=settle)
        reducer.on_publish(outcomes.published)
        outcomes.told.append(core.revisions.judged)
    workers = _crew(settings, sockets, inputs, reducer)
    progress = PlaneProgress()
    webhooks = _webhooks(settings, inputs, is_ready=lambda: progress.is_overdue or reducer.synced)
    status_writer, effects = _reports(settings, inputs, core, workers)
    recorder = await _restored(settings, inputs, core, owners, effects)
    if outcomes is not None and recorder is not None and recorder.history is not None:
        outcomes.told.append(recorder.history.judged)
    await excuse(faults, reducer.intake.stale(), recorder)
    supervisors = [Supervisor(source, core.events) for source in inputs.sources]
    state = attrs.evolve(
        core.state(inputs.election, progress),
        supervisors=supervisors,
        events=core.events,
        recorder=recorder,
        registrations=inputs.registrar,
        config_store=config_store,
        webhooks=webhooks,
        status_writer=status_writer,
        others=workers,
        gone_before=await past_proxies(recorder),
        max_age_of=settings.state.max_age_of if settings.state is not None else _unlimited,
    )
    answer_by_gateways(inputs.acme, state)
    web, monitoring, own, ask, metrics = _apps(state, workers)
    serve_debug_types(settings, core, ask)
    web_at = [address_of(each.socket) for each in sockets.http]
    plane = ControlPlane(settings, state, sockets, own, registrar=inputs.registrar, workers=workers)
    return (
        plane,
        core,
        FirstWorker(
            supervisors=supervisors,
            sink=inputs.sink,
            election=inputs.election,
            owners=owners,
            shared_owners=_shared_owners(settings, inputs.election, owners),
            recorder=recorder,
            outcomes=outcomes,
            workers=workers,
            webhooks=webhooks,
            ports=_ports(plane, web_port(access, web, monitoring, state, web_at), monitoring, tls, webhooks),
            web=web,
            ask=ask,
            metrics_push=_metrics_push(settings, state, metrics),
        ),
    )


async def _inputs(
    settings: Settings,
    addresses: Addresses,
    mesh: MeshConfig | None,
    more_sources: Sequence[Source],
    stack: ExitStack,
) -> _Inputs:
    live, accounts = live_objects(settings), _accounts(settings)
    cluster = cluster_source(settings, live, accounts.rulings if accounts is not None else None)
    named = source_list(settings, mesh, addresses.grpc, cluster)
    tell_mesh([*named, *more_sources], mesh)
    short_names_in = short_name_domain(settings, [*named, *more_sources])
    world = World(
        domain=settings.domain,
        root_namespace=settings.namespace,
        short_names_in=short_names_in,
        cluster_id=own_cluster_id(settings),
    )
    identities = await open_identities(settings, world, [addresses.secure_grpc])
    sink = sink_server(settings, mesh, addresses.grpc, identities)
    guarded = [*named, *([sink] if sink is not None else []), *more_sources]
    election = election_of(settings, addresses)
    registrar = registrar_of(settings, election)
    keys = KeySource(PolicyKeySets(world))
    hosts = GatewayHosts(NetworkGatewayHosts(world))
    modules = ModuleSource(ExtensionModules(world), module_folder(settings, stack), settings.wasm)
    federation = federation_of(settings, world, identities.trust)
    acme = acme_source(settings, world, election)
    sources = [*guarded, keys, hosts, modules, federation, registrar, acme]
    for source in sources:
        world.expect(source.name)
    return _Inputs(
        world=world,
        identities=identities,
        sources=sources,
        guarded=guarded,
        hooks=[
            lambda _: keys.wake(),
            lambda published: modules.revised(published.revision.changed),
            lambda _: federation.wake(),
            lambda published: hosts.revised(published.revision.changed),
            lambda published: acme_revised(acme, published.revision.changed),
        ],
        short_names_in=short_names_in,
        live=live,
        accounts=accounts,
        sink=sink,
        election=election,
        registrar=registrar,
        acme=acme,
    )


def _accounts(settings: Settings) -> ProxyAccounts | None:
    if config_access(settings) is None:
        return None
    from mesh_pilot.app.proxy_accounts import ProxyAccounts

    return ProxyAccounts()


def _reducer(settings: Settings, mesh: MeshConfig | None, inputs: _Inputs, owners: HostOwnership) -> Reducer:
    """The reducer, with what comes before the core: the hooks of sources, and the gates of owners."""
    world = inputs.world
    in_files = [source.name for source in inputs.guarded if isinstance(source, FileSource)]
    guarded = [source.name for source in inputs.guarded]
    intake = Intake(world, guarded=guarded, in_files=in_files, guard=settings.guard)
    reducer = reducer_of(settings, world, intake, follows=False)
    watch = ConfigSourcesWatch(settings, mesh)
    reducer.on_publish(lambda published: watch.published(world, published.revision.changed))
    reducer.on_publish(lambda published: follow_mesh(inputs.sources, world, published.revision.changed))
    for hook in inputs.hooks:
        reducer.on_publish(hook)
    reducer.gates += [HostAdmission(world).admit, owners.admit]
    reducer.on_publish(lambda _: owners.revised())
    return reducer


def _crew(settings: Settings, sockets: Sockets, inputs: _Inputs, reducer: Reducer) -> WorkerSupervisor | None:
    if settings.workers.count == 1:
        return None
    from mesh_pilot.replicas.workers.frames import Setup, encode
    from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor

    world = inputs.world
    setup = Setup(
        settings=_for_workers(settings),
        shutdown_seconds=settings.shutdown_seconds,
        sources=tuple(name for name in world.sources() if name != QUARANTINE),
        domain=settings.domain,
        root_namespace=settings.namespace,
        short_names_in=inputs.short_names_in,
        http=sockets.addresses().http,
        cluster_id=world.cluster_id,
    )
    try:
        encode(setup)
    except (TypeError, AttributeError, ValueError) as error:  # what pickle raises
        raise StartError(f"--workers: these settings cannot be passed on to other processes: {error}") from error
    workers = WorkerSupervisor(
        settings.workers,
        setup,
        world,
        inputs.identities.trust,
        sockets.grpc,
        sockets.secure_grpc,
        registrar=inputs.registrar,
    )
    reducer.on_publish(workers.published)
    return workers


def _with_shared_root(settings: Settings) -> Settings:
    """The settings, with a root for this run that all workers have, where there would be one of each worker."""
    if (
        settings.ca_files is None
        and settings.ca_dir is None
        and settings.ca_store is None
        and settings.ca_signer is None
    ):
        return attrs.evolve(settings, ca_files=root_for_this_run(datetime.now(UTC)))
    return settings


def _for_workers(settings: Settings) -> Settings:
    """The settings of the others, without what only the first one does."""
    return attrs.evolve(
        settings,
        config_dirs=(),
        mesh_config=None,
        networks_config=None,
        secrets_dir=None,
        registries=(),
        mcp_servers=(),
        mcp_sink_addr=None,
        state=None,
        admin_socket=None,
        election=None,
        metrics_push=None,
        workers=WorkerSettings(),
    )


def _shared_owners(settings: Settings, election: Election, owners: HostOwnership) -> SharedOwners | None:
    if settings.election is None:
        return None
    from mesh_pilot.app.shared_owners import share_owners

    return share_owners(settings, election, owners)


def _webhooks(settings: Settings, inputs: _Inputs, *, is_ready: Callable[[], bool]) -> Webhooks | None:
    if settings.webhooks is None:
        return None
    from mesh_pilot.app.webhooks import webhooks_of  # with it come templates, a few megabytes

    return webhooks_of(settings, inputs.identities, inputs.world, inputs.election, is_ready=is_ready)


def _reports(
    settings: Settings, inputs: _Inputs, core: Core, workers: WorkerSupervisor | None
) -> tuple[StatusWriter | None, Effects]:
    """The writer of status, and the effects of revisions on all proxies; other workers are asked if anybody reads
    them."""
    accounts = inputs.accounts if inputs.accounts is not None and inputs.accounts.rulings.is_used else None
    is_read = accounts is not None or inputs.live is not None or settings.state is not None
    effects: Effects = workers.follow_effects(core.xds.status) if workers is not None and is_read else core.xds.status
    if accounts is not None:
        accounts.follow(core.xds.status, effects)
    if inputs.live is None:
        return None, effects
    return write_status(settings, inputs.live, core, inputs.election, effects, is_alone=workers is None), effects


async def _restored(
    settings: Settings, inputs: _Inputs, core: Core, owners: HostOwnership, effects: Effects
) -> Recorder | None:
    """The recorder of the state, once what the last run left is in force."""
    kept: list[Recorded] = [*inputs.sources, *(each for each in (core.quarantine, core.rollouts, owners) if each)]
    recorder = await restore(settings, kept, core.world, core.reducer)
    if recorder is not None and recorder.history is not None:
        recorder.history.effects = effects
    for source in inputs.sources:
        if isinstance(source, Supervising):
            source.state_writer = recorder
    return recorder


def _apps(
    state: PlaneState, workers: WorkerSupervisor | None
) -> tuple[App, App, Answer, Answer, Callable[[], Awaitable[Sequence[Metric]]]]:
    """The apps of the web and metrics ports, the answers about this worker and about all, and all metrics."""
    web, monitoring = LaterApp("mesh_pilot.ops.app", partial(_debug_app, state)), monitoring_app(state)
    own = _answers(state, web)
    if workers is None:
        return web, monitoring, own, own, partial(_metrics_of, state)
    from mesh_pilot.ops.api.app import api_routes
    from mesh_pilot.ops.metrics import Metrics
    from mesh_pilot.ops.workers import WorkersApp, about_all

    everyone = WorkersApp(web, monitoring, own, workers, Metrics(state), api_routes(state))
    web_of_all = everyone.web()
    return web_of_all, everyone.monitoring(), own, about_all(own, web_of_all, workers), everyone.metrics


async def _metrics_of(state: PlaneState) -> Sequence[Metric]:
    return (await metrics_of(state)).metrics()


def _metrics_push(
    settings: Settings, state: PlaneState, metrics: Callable[[], Awaitable[Sequence[Metric]]]
) -> MetricsPush | None:
    if settings.metrics_push is None:
        return None
    from mesh_pilot.ops.metrics.push import metrics_push

    return metrics_push(settings.metrics_push, state, metrics)


def _debug_app(state: PlaneState) -> App:
    from mesh_pilot.ops.app import debug_app

    return debug_app(state)


def _answers(state: PlaneState, web: App) -> Answer:
    """The answers about this worker, loaded with the first question."""

    @cache
    def built() -> Answer:
        from mesh_pilot.ops.workers import about_this_worker

        return about_this_worker(state, web)

    async def answer(question: object) -> object:
        await load("mesh_pilot.ops.workers")
        return await built()(question)

    return answer


def _ports(
    plane: ControlPlane, web: App, monitoring: App, tls: TlsSource | None, webhooks: Webhooks | None
) -> Mapping[str, Port]:
    state, sockets, right_port = plane.state, plane.sockets, plane.addresses.grpc
    ports: dict[str, Port] = {}
    if sockets.http:
        ports["web"] = (
            HttpServer(web, port="web", right_port=right_port, tls=tls, limits=http_limits(plane.settings)),
            sockets.http,
        )
    if sockets.monitoring:
        ports["metrics"] = HttpServer(monitoring, port="metrics", right_port=right_port), sockets.monitoring
    if webhooks is not None:
        ports["webhooks"] = webhooks.server, sockets.webhooks
    state.http_servers.extend(server for server, _ in ports.values())
    return ports


def _unlimited(source: str) -> float:
    return math.inf
