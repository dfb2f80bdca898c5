"""``mesh-pilot inject``: sidecars for the Pods of manifests, as ``istioctl kube-inject``; the webhook's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from mesh_pilot.base.reading import member
from mesh_pilot.cli.lib.file_arguments import takes_files
from mesh_pilot.cli.lib.options import SectionedCommand

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionMesh, Injector

_PATH = click.Path(path_type=Path)
MAX_BYTES = 64 << 20


@click.command("inject", cls=SectionedCommand, context_settings={"show_default": True})
@takes_files("Manifests, YAML or JSON; - reads standard input.", required=True)
@click.option("-o", "--output", type=click.File("w", lazy=True), default="-", help="File to write to.")
@click.option(
    "--injection-template",
    type=_PATH,
    help="YAML file with templates, selectors and values of injected sidecars.",
)
@click.option("--injection-image", default="", help="Image with mesh-pilot and Envoy, for injected sidecars.")
@click.option("--mesh-config", type=_PATH, help="File with Istio's MeshConfig (mesh.yaml).")
@click.option("--namespace", "-n", default="default", help="Namespace of objects that name none.")
@click.option("--istio-namespace", "-i", default="istio-system", help="Namespace of the control plane.")
@click.option("--revision", "-r", default="", help="Revision of the control plane.")
@click.option("--cluster-id", default="", help="CLUSTER_ID of the proxies, as of discovery.")
def command(
    files: tuple[str, ...],
    output: TextIO,
    injection_template: Path | None,
    injection_image: str,
    mesh_config: Path | None,
    namespace: str,
    istio_namespace: str,
    revision: str,
    cluster_id: str,
) -> None:
    """Add a sidecar to each Pod, and to what makes Pods: Deployments, StatefulSets, Jobs and the like.

    The manifests are written to standard output, and all else in them is as it was. Pods that get no sidecar are named
    on standard error. Exits with 1, and writes nothing, if a manifest cannot be read or a Pod cannot have a sidecar.
    """
    from mesh_pilot.cli.discovery.connection_flags import injection_settings
    from mesh_pilot.istio.reading.yaml_text import yaml_text
    from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettingsError, read_settings
    from mesh_pilot.kubernetes.webhooks.injection.context import InjectionTemplateError
    from mesh_pilot.kubernetes.webhooks.injection.inject import Injector

    try:
        settings = injection_settings(injection_image, istio_namespace, revision, cluster_id)
        if injection_template is not None:
            settings = read_settings(injection_template.read_bytes(), settings)
        injector = Injector.of(settings)
    except (InjectionSettingsError, InjectionTemplateError, OSError) as error:
        raise click.ClickException(f"--injection-template: {error}") from None
    mesh_of = _mesh(mesh_config, istio_namespace)
    injected = [each for file in files for each in _of_file(file, injector, mesh_of, namespace)]
    output.write(yaml_text(injected))


def _of_file(
    file: str, injector: Injector, mesh_of: Callable[[Mapping[str, Any]], InjectionMesh], namespace: str
) -> list[Any]:
    """The manifests of a file, with sidecars in them. Raises ClickException."""
    from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionError

    try:
        with click.open_file(file, "rb") as opened:
            documents = _documents(opened.read(MAX_BYTES + 1))
        return [_injected(document, injector, mesh_of, namespace) for document in documents if document is not None]
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except ValueError as error:
        kind = "" if isinstance(error, InjectionError) else "these are not manifests: "
        raise click.ClickException(f"{file}: {kind}{' '.join(str(error).split())}") from None


def _documents(text: bytes) -> list[object]:
    """The manifests, by Kubernetes' reading of YAML. Raises ValueError."""
    import yaml

    from mesh_pilot.istio.reading.yaml_marked import MarkedReader, UnsupportedYamlError

    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        return [data for data, _ in MarkedReader(text.decode(), 0).documents()]
    except UnsupportedYamlError as error:
        raise ValueError(f"line {error.line}: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mesh(path: Path | None, namespace: str) -> Callable[[Mapping[str, Any]], InjectionMesh]:
    """The mesh as a Pod's metadata see it, without ProxyConfig objects. Raises ClickException."""
    from mesh_pilot.istio.reading.encode_json import to_json
    from mesh_pilot.istio.reading.mesh import LineOf, decode_mesh
    from mesh_pilot.istio.reading.yaml import Document, load
    from mesh_pilot.kubernetes.webhooks.injection.annotations import PROXY_CONFIG
    from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionMesh
    from mesh_pilot.mesh.proxy.agent_config import beyond_defaults, with_annotation
    from mesh_pilot.model.config import ConfigError, Origin

    data: object = None
    line_of: LineOf = lambda _: 0  # noqa: E731
    try:
        if path is not None:
            document = next(load(path.read_bytes().decode(), Origin("file", str(path))), None)
            if isinstance(document, ConfigError):
                raise document
            if isinstance(document, Document):
                data, line_of = document.data, document.line_of
        origin = Origin("file", str(path or ""))
        mesh = decode_mesh(data, origin=origin, line_of=line_of, root_namespace=namespace)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise click.ClickException(f"--mesh-config: {error}") from None
    as_json = to_json(mesh)

    def found(metadata: Mapping[str, Any]) -> InjectionMesh:
        text = (metadata.get("annotations") or {}).get(PROXY_CONFIG, "")
        config = with_annotation(beyond_defaults(mesh.default_config), text)
        return InjectionMesh(mesh=as_json, proxy_config=to_json(config))

    return found


def _injected(
    document: Any, injector: Injector, mesh_of: Callable[[Mapping[str, Any]], InjectionMesh], namespace: str
) -> Any:
    """The document with sidecars in it. Raises InjectionError; ValueError for what is not an object."""
    from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionError
    from mesh_pilot.kubernetes.webhooks.injection.workload import PodOwner

    if not isinstance(document, dict):
        raise ValueError(f"expected objects, and found {type(document).__name__}")
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        items = [_injected(item, injector, mesh_of, namespace) for item in document["items"]]
        return {**document, "items": items}
    # What is not about Pods passes as it is, as with kubectl and istioctl. The errors of shape come from templates that
    # reach into a Pod which is none: there are too many places to check each beforehand.
    path = _template_path(document)
    if path is None:
        return document
    pod: Any = document
    for key in path:
        pod = pod[key]
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata of a {document.get('kind')} is not an object")
    where = str(metadata.get("namespace") or namespace)
    kind, name = str(document.get("kind")), str(metadata.get("name") or "")
    owner = PodOwner(name, where, kind, str(document.get("apiVersion", ""))) if path else None
    try:
        found = injector.inject(pod, where, mesh_of(pod.get("metadata") or {}), workload=owner)
    except InjectionError as error:
        raise InjectionError(f"{kind} {where}/{name}: {error}") from None
    except (TypeError, AttributeError, LookupError) as error:
        raise InjectionError(f"{kind} {where}/{name}: this is not a Pod: {type(error).__name__}: {error}") from None
    for line in (*found.warnings, *([] if found.is_injected else [f"no sidecar: {found.reason}"])):
        click.echo(f"mesh-pilot: {kind} {where}/{name}: {line}", err=True)
    return _replaced(document, path, found.pod)


def _template_path(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The place of the Pod, or its template, in an object; None if it has none."""
    paths = [("spec", "template"), ("spec", "jobTemplate", "spec", "template")]
    if document.get("kind") == "Pod" and document.get("apiVersion") == "v1":
        return ()
    return next((path for path in paths if _has_pod(document, path)), None)


def _has_pod(document: Any, path: tuple[str, ...]) -> bool:
    return isinstance(member(document, *path, "spec", "containers"), list)


def _replaced(document: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**document, path[0]: _replaced(document[path[0]], path[1:], value)}
