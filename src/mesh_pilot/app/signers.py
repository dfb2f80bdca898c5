"""The kinds of CAs elsewhere that may sign: the one place that lists them.

A kind is a class of settings and a client, in a folder; code of other kinds is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mesh_pilot.app.settings import fault_of
from mesh_pilot.identity.signers.settings import NamedCa, SignerKind, read_signer
from mesh_pilot.model.config import ConfigError


def _vault() -> SignerKind[Any]:
    from mesh_pilot.identity.signers.vault.ca import VaultCa
    from mesh_pilot.identity.signers.vault.settings import VaultSettings

    return SignerKind(VaultSettings, VaultCa)


def _step_ca() -> SignerKind[Any]:
    from mesh_pilot.identity.signers.step_ca.ca import StepCa
    from mesh_pilot.identity.signers.step_ca.settings import StepCaSettings

    return SignerKind(StepCaSettings, StepCa)


def _est() -> SignerKind[Any]:
    from mesh_pilot.identity.signers.est.ca import EstCa
    from mesh_pilot.identity.signers.est.settings import EstSettings

    return SignerKind(EstSettings, EstCa)


def _aws_pca() -> SignerKind[Any]:
    from mesh_pilot.identity.signers.aws_pca.ca import AwsPca
    from mesh_pilot.identity.signers.aws_pca.settings import AwsPcaSettings

    return SignerKind(AwsPcaSettings, AwsPca)


def _kubernetes() -> SignerKind[Any]:
    from mesh_pilot.kubernetes.identity.signer import KubernetesSigner
    from mesh_pilot.kubernetes.identity.signer_settings import KubernetesSignerSettings

    return SignerKind(KubernetesSignerSettings, KubernetesSigner)


KINDS: Mapping[str, Callable[[], SignerKind[Any]]] = {
    "vault": _vault,
    "stepCA": _step_ca,
    "est": _est,
    "awsPrivateCA": _aws_pca,
    "kubernetes": _kubernetes,
}
"""Each ``kind``, imported when it is asked for."""


def named_ca(path: Path) -> NamedCa:
    """The CA in the file of ``--ca-signer``. Raises StartError."""
    try:
        return read_signer(path, KINDS)
    except ConfigError as error:
        raise fault_of(error) from error
