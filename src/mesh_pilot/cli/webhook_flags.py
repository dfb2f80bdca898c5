"""Flags of ``mesh-pilot discovery`` about webhooks, and those of injection, which ``mesh-pilot inject`` has too."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import ListOption, address, words

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.apiserver import Access
    from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings

_PATH = click.Path(path_type=Path)

INJECTION_FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--injection-template",
        {"type": _PATH, "help": "YAML file with templates, selectors and values of injected sidecars."},
    ),
    ("--injection-image", {"default": "", "help": "Image with mesh-pilot and Envoy, for injected sidecars."}),
)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--https-addr",
        {"type": address, "help": "Webhooks of an API server: validation and injection, as :15017.  [default: off]"},
    ),
    (
        "--webhook-dns-names",
        {
            "cls": ListOption,
            "default": "",
            "metavar": "NAME,...",
            "help": "DNS names in their certificate.  [default: the Services istiod and mesh-pilot]",
        },
    ),
    *INJECTION_FLAGS,
)
"""Each flag with what click takes of it."""


def take_webhooks(settings: MutableMapping[str, Any], environ: Mapping[str, str]) -> WebhookSettings | None:
    """The settings, of which the flags are taken out; None without ``--https-addr``. Raises UsageError.

    Those of the API server, of the cluster and of the namespace stay there.
    """
    listening, names = settings.pop("https_addr"), settings.pop("webhook_dns_names")
    template, image = settings.pop("injection_template"), settings.pop("injection_image")
    if not listening:
        for flag, value in (
            ("--webhook-dns-names", names),
            ("--injection-template", template),
            ("--injection-image", image),
        ):
            if value:
                raise click.UsageError(f"{flag} needs --https-addr, such as :15017")
        return None
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings

    revision = settings["revision"] or environ.get("REVISION", "")
    return WebhookSettings(
        address=listening,
        dns_names=words(names),
        injection=injection_settings(
            image, settings["namespace"], revision, settings["cluster_id"], settings["domain"]
        ),
        injection_file=template,
        revision=revision,
        access=_access(settings),
    )


def injection_settings(
    image: str, namespace: str, revision: str, cluster: str = "", domain: str = "cluster.local"
) -> InjectionSettings:
    """The settings of injection that flags give."""
    from mesh_pilot.kubernetes.webhooks.injection.configuration import DEFAULT_VALUES, InjectionSettings, merged_values

    given = {
        "istioNamespace": namespace,
        "multiCluster": {"clusterName": cluster},
        "proxy": {"image": image, "clusterDomain": domain},
    }
    values = merged_values(DEFAULT_VALUES, {"global": given, "revision": revision}, "values")
    return InjectionSettings(revision=revision, values=values)


def _access(settings: Mapping[str, Any]) -> Access | None:
    """The API server whose webhook configurations are ours: the one whose objects are read, else that of the cluster in
    which this runs."""
    from mesh_pilot.cli.registries import REGISTRIES
    from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access

    path = settings["kubeconfig"] or settings["kubernetes_kubeconfig"]
    titles = {registry.title for registry in REGISTRIES if "--kubeconfig" in registry.names}
    is_read = not titles.isdisjoint(settings["registries"])
    if path is None and not is_read and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    flag = "--kubernetes-kubeconfig" if path and not settings["kubeconfig"] else "--kubeconfig"
    try:
        return load_access(path, settings["context"] if settings["kubeconfig"] or is_read else "", flag=flag)
    except KubernetesError as error:
        raise click.UsageError(str(error)) from None
