"""The flags of ``mesh-pilot discovery`` about tokens that others made, by which callers say who they are."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
    from mesh_pilot.sources.base.contract import Registry

_FILE = click.Path(path_type=Path)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("--jwt-rules", {"type": _FILE, "help": "YAML or JSON file of issuers whose JSON Web Tokens are believed."}),
    (
        "--accept-kubernetes-tokens",
        {"is_flag": True, "help": "Believe tokens of service accounts; the API server reviews them."},
    ),
    ("--kubernetes-kubeconfig", {"type": _FILE, "help": "How to reach it.  [default: as a pod, or as kubectl does]"}),
    (
        "--kubernetes-token-audience",
        {"multiple": True, "default": ("istio-ca",), "help": "Whom those tokens must be for; may be repeated."},
    ),
    (
        "--accept-consul-tokens",
        {"is_flag": True, "help": "Believe ACL tokens with a service identity; our agent is asked about them."},
    ),
    (
        "--trust-consul-namespaces",
        {
            "is_flag": True,
            "help": "Their namespace is that of the service's metadata: whoever may register a service chooses it.",
        },
    ),
)
"""Each flag with the attributes of its click option."""


def take_foreign_tokens(
    options: MutableMapping[str, Any], registries: Sequence[Registry], *, needs_kubeconfig: bool = False
) -> ForeignTokenSettings:
    """The settings that were given, taken out of the options of the command. Raises UsageError.

    ``needs_kubeconfig``: something else reads the kubeconfig.
    """
    jwt_rules = options.pop("jwt_rules")
    kubernetes, kubeconfig = options.pop("accept_kubernetes_tokens"), options.pop("kubernetes_kubeconfig")
    audiences = options.pop("kubernetes_token_audience")
    consul, trust_namespaces = options.pop("accept_consul_tokens"), options.pop("trust_consul_namespaces")
    from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
    from mesh_pilot.consul.source import ConsulRegistry
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
    from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings

    datacenters = [r.datacenters[0] for r in registries if isinstance(r, ConsulRegistry)]
    if consul and not datacenters:
        raise click.UsageError("--accept-consul-tokens needs an agent to ask: --consul-server-url")
    if trust_namespaces and not consul:
        raise click.UsageError("--trust-consul-namespaces is about the tokens of --accept-consul-tokens")
    if kubeconfig and not kubernetes and not needs_kubeconfig:
        raise click.UsageError(
            "--kubernetes-kubeconfig needs --accept-kubernetes-tokens or --leader-election kubernetes"
        )
    return ForeignTokenSettings(
        jwt_rules=jwt_rules,
        kubernetes=KubernetesTokenSettings(kubeconfig=kubeconfig, audiences=tuple(audiences)) if kubernetes else None,
        consul=ConsulTokenSettings(datacenter=datacenters[0], trust_namespaces=trust_namespaces) if consul else None,
    )
