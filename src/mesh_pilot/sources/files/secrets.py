"""TLS credentials from files: Kubernetes Secret objects, and folders that hold PEM files.

Names of the parts are those that Istio's gateways take (Istio, "Secure Gateways", key formats).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

import attrs

from mesh_pilot.base.reading import as_object, as_string
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import Problem
from mesh_pilot.model.events import Grant, Secret, item_key
from mesh_pilot.sources.base.published import InvalidObject, ValidObject
from mesh_pilot.sources.files.content import IgnoredObject, ParsedDocument
from mesh_pilot.sources.files.grants import ANNOTATION, GRANTS, read_grants_annotation, read_grants_file
from mesh_pilot.sources.files.pem import (
    are_revocation_lists,
    certificates,
    presented_reason,
    public_key_of,
    subject_key,
)

_PARTS = {
    "tls.crt": "certificate_chain",
    "cert": "certificate_chain",
    "tls.key": "private_key",
    "key": "private_key",
    "ca.crt": "ca_certificates",
    "cacert": "ca_certificates",
    "ca.crl": "crl",
    "crl": "crl",
}
CERTIFICATE_PARTS = tuple(part for part, field in _PARTS.items() if field in ("certificate_chain", "ca_certificates"))
"""The parts of which a credential has one at least."""

PART_NAMES = tuple(_PARTS)
"""Names that a credential's parts may have, as keys of a Secret or as files."""

FILE_NAMES = (*PART_NAMES, GRANTS)
"""Names of the files in a credential's folder."""

CONFIG_MAP = "configmap/"
"""Begins the name of a credential that is a ConfigMap with CA certificates."""
_CA = "ca.crt"

_FORM = ": each from BEGIN to END, which stand on separate lines"

_TYPES = ("kubernetes.io/tls", "Opaque")

DOCKER_CONFIG = ".dockerconfigjson"
"""The part of a Secret with the credentials of registries of images."""
DOCKER_TYPE = "kubernetes.io/dockerconfigjson"


def make_credential(name: str, namespace: str, parts: Mapping[str, bytes]) -> tuple[Secret, tuple[Problem, ...]]:
    """The credential of these PEM parts, and what is wrong with it; a problem's path is the part's name.

    A certificate needs its key and the other way round; CA certificates may stand alone. Grants may be among the
    parts. Names that are not parts are passed over.
    """
    values: dict[str, bytes] = {}
    names: dict[str, str] = {}
    problems: list[Problem] = []
    for part, value in parts.items():
        field = _PARTS.get(part)
        if field is None:
            continue
        if field in values:
            problems.append(Problem(part, f"says the same as {names[field]}: keep one of them"))
            continue
        values[field], names[field] = value, part
    grants: tuple[Grant, ...] = ()
    if GRANTS in parts:
        try:
            grants = read_grants_file(parts[GRANTS])
        except ValueError as error:
            problems.append(Problem(GRANTS, str(error)))
    certificate, key, ca, crl = (values.get(each, b"") for each in dict.fromkeys(_PARTS.values()))
    secret = Secret(name, namespace, certificate, key, ca, crl, grants)
    return secret, (*problems, *_check(secret, names))


def read_secret_object(document: Document, default_namespace: str) -> ParsedDocument:
    """The credential of a Kubernetes Secret; an IgnoredObject if it is of another type or has none of these parts."""
    data = document.data
    is_docker = data.get("type") == DOCKER_TYPE
    if not is_docker and data.get("type", "Opaque") not in _TYPES:
        return IgnoredObject("v1", "Secret", document.line)
    metadata = data.get("metadata")
    name = as_string(metadata, "name")
    if not isinstance(metadata, Mapping) or not name:
        return InvalidObject(
            (Problem("metadata.name", "is missing", line=document.line_of("metadata")),), line=document.line
        )
    namespace = str(metadata.get("namespace") or default_namespace)
    problems: list[Problem] = []
    if is_docker:
        return _read_docker_config(document, name, namespace)
    # A Secret without any of our parts is somebody else's, not a wrong one: nothing is said about it. With a part that
    # is not base64 it is ours all the same.
    parts = {part: value for part, value in _decoded(document, problems).items() if part in _PARTS}
    if not parts and not problems:
        return IgnoredObject("v1", "Secret", document.line)
    secret, wrong = make_credential(name, namespace, parts)
    annotation = as_object(metadata, "annotations").get(ANNOTATION)
    if isinstance(annotation, str):
        try:
            secret = attrs.evolve(secret, grants=read_grants_annotation(annotation))
        except ValueError as error:
            problems.append(Problem(f"metadata.annotations[{ANNOTATION}]", str(error)))
    where = {part: "stringData" if part in as_object(data, "stringData") else "data" for part in parts}
    if not problems:
        problems += (attrs.evolve(p, path=f"{where[p.path]}[{p.path}]" if p.path else "data") for p in wrong)
    if problems:
        lined = tuple(attrs.evolve(p, line=document.line_of(p.path)) for p in problems)
        return InvalidObject(lined, item_key(secret), document.line)
    return ValidObject(item_key(secret), secret, document.line)


def read_config_map(document: Document, default_namespace: str) -> ParsedDocument:
    """The CA certificates of a Kubernetes ConfigMap, to which policies and Gateways of the Gateway API refer; an
    IgnoredObject if it has none."""
    metadata, text = as_object(document.data, "metadata"), as_object(document.data, "data").get(_CA)
    name = metadata.get("name")
    if not isinstance(text, str) or not isinstance(name, str) or not name:
        return IgnoredObject("v1", "ConfigMap", document.line)
    namespace = str(metadata.get("namespace") or default_namespace)
    secret, wrong = make_credential(f"{CONFIG_MAP}{name}", namespace, {_CA: text.encode()})
    if wrong:
        lined = (attrs.evolve(p, path=f"data[{_CA}]", line=document.line_of(f"data[{_CA}]")) for p in wrong)
        return InvalidObject(tuple(lined), item_key(secret), document.line)
    return ValidObject(item_key(secret), secret, document.line)


def _read_docker_config(document: Document, name: str, namespace: str) -> ParsedDocument:
    problems: list[Problem] = []
    value = _decoded(document, problems).get(DOCKER_CONFIG, b"")
    secret = Secret(name, namespace, docker_config=value)
    if not problems and not _is_docker_config(value):
        problems.append(Problem(f"data[{DOCKER_CONFIG}]", 'is not JSON with "auths" by registry'))
    if problems:
        lined = tuple(attrs.evolve(p, line=document.line_of("data")) for p in problems)
        return InvalidObject(lined, item_key(secret), document.line)
    return ValidObject(item_key(secret), secret, document.line)


def _is_docker_config(value: bytes) -> bool:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("auths"), dict)


def _decoded(document: Document, problems: list[Problem]) -> dict[str, bytes]:
    """The values of `data` (base64) and `stringData`, which wins, as Kubernetes has it."""
    values: dict[str, bytes] = {}
    for part, text in as_object(document.data, "data").items():
        try:
            values[part] = base64.b64decode("".join(str(text).split()), validate=True)
        except (binascii.Error, ValueError):
            if part in _PARTS or part == DOCKER_CONFIG:
                problems.append(Problem(f"data[{part}]", "is not base64 (plain text goes under stringData)"))
    return values | {part: str(text).encode() for part, text in as_object(document.data, "stringData").items()}


def _check(secret: Secret, names: Mapping[str, str]) -> list[Problem]:
    """The problems of a credential. They never quote its content."""
    problems = []
    if not secret.certificate_chain and not secret.private_key and not secret.ca_certificates:
        return [Problem("", f"holds no certificate: expected some of {', '.join(PART_NAMES)}")]
    # Every part is judged, so that whoever fixes the file sees all that is wrong with it. The chain and its key are
    # compared last, once both could be read: Envoy refuses a pair that does not match, and with it the whole listener.
    chain = ca = key = None
    if secret.certificate_chain:
        chain = certificates(secret.certificate_chain)
        if chain is None:
            problems.append(Problem(names["certificate_chain"], f"is not a chain of PEM certificates{_FORM}"))
        elif reason := presented_reason(chain[0]):
            problems.append(Problem(names["certificate_chain"], reason))
        if not secret.private_key:
            problems.append(Problem(names["certificate_chain"], "has no private key next to it"))
    if secret.private_key:
        key = public_key_of(secret.private_key)
        if key is None:
            problems.append(Problem(names["private_key"], "is not an unencrypted PEM private key"))
        if not secret.certificate_chain:
            problems.append(Problem(names["private_key"], "has no certificate next to it"))
    if secret.ca_certificates:
        ca = certificates(secret.ca_certificates)
        if ca is None:
            problems.append(Problem(names["ca_certificates"], f"is not a list of PEM certificates{_FORM}"))
    if chain and key and key != subject_key(chain[0]):
        problems.append(Problem(names["private_key"], f"is not the key of {names['certificate_chain']}"))
    if secret.crl and not are_revocation_lists(secret.crl):
        problems.append(Problem(names["crl"], f"is not a PEM certificate revocation list, or several{_FORM}"))
    return problems
