"""A bundle: the one file by which a machine joins the mesh, of ``mesh-pilot token create --bundle``.

It is JSON: an identity, settings of the proxy as they are in ``proxy.yaml``, and the content of files that settings
would name. It has a join token, so it is a secret until that ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.model.spiffe import Identity, parse_identity

FILES: Mapping[str, str] = {
    "tls-ca": "root.pem",
    "token-file": "token",
    "consul-token-file": "consul.token",
    "custom-bootstrap": "bootstrap.yaml",
}
"""Settings that name a file which the bundle brings, and its name next to ``proxy.yaml``."""

LEFT_OUT = (
    *("token-file", "consul-login-token-file", "cert-chain", "key", "root-cert", "sds-socket", "plaintext"),
    *("namespace", "service-account", "state-dir", "run-dir"),
)
"""Settings that no bundle may have: its token, or the command that joins, says them."""

MAX_BYTES = 1_000_000


class JoinBundleError(Exception):
    """A bundle that cannot be used: one line with the file and what to do."""


@attrs.frozen
class JoinBundle:
    """Settings and the content of files, each by the setting that names it."""

    identity: Identity
    expires: datetime
    """The end of the token, in UTC."""
    settings: Mapping[str, Any]
    files: Mapping[str, str] = attrs.field(repr=False)


def written(bundle: JoinBundle) -> bytes:
    """The content of the file."""
    found = {
        "identity": str(bundle.identity),
        "expires": f"{bundle.expires:%FT%TZ}",
        "settings": dict(bundle.settings),
        "files": dict(bundle.files),
    }
    return json.dumps(found, indent=2, default=str).encode() + b"\n"


def read(path: Path) -> JoinBundle:
    """The bundle in a file. Raises JoinBundleError."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
    except OSError as error:
        raise JoinBundleError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _foreign(path) from None
    try:
        identity = parse_identity(found["identity"])
        expires = datetime.strptime(found["expires"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        settings, files = found["settings"], found["files"]
        wrong = (
            not isinstance(settings, dict)
            or not isinstance(settings["pilot"], list)
            or not {"tls-ca", "token-file"} <= set(files)
        )
        wrong = wrong or not all(isinstance(text, str) for text in (*files.values(), *settings["pilot"]))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _foreign(path) from None
    if wrong or identity is None:
        raise _foreign(path)
    return JoinBundle(identity, expires, settings, {name: files[name] for name in FILES if name in files})


def _foreign(path: Path) -> JoinBundleError:
    return JoinBundleError(f"{path} is not a bundle, which mesh-pilot token create ACCOUNT --bundle FILE writes")


def settings_of(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings in a file like ``proxy.yaml``, and the content of the files that they name. Raises ClickException.

    Whatever the proxy would refuse is refused here, where it is written.
    """
    import click

    from mesh_pilot.cli.lib.settings_file import read_file
    from mesh_pilot.cli.proxy.command import proxy_command
    from mesh_pilot.cli.proxy.defaults import defaults_of

    defaults_of(click.Context(proxy_command("sidecar", "")), path, {})
    settings: dict[str, Any] = {}
    files: dict[str, str] = {}
    for key, entry in read_file(path).items():
        if key in LEFT_OUT:
            raise click.UsageError(f"{entry.place}: a bundle cannot have {key}: remove the line")
        if key in FILES:
            try:
                files[key] = Path(str(entry.text)).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise click.UsageError(f"{entry.place}: {key} {entry.text}: {reason}") from None
        else:
            is_plain = entry.text is None or json.dumps(entry.value, default=str) == entry.text
            settings[key] = entry.value if is_plain else entry.text  # `off` and `1.10` are those texts
    return settings, files


def merged(text: str, settings: Mapping[str, Any]) -> str:
    """The text of a settings file with these in place of those that it has by the same keys; the rest as it was."""
    ours = {key: f"{key}: {json.dumps(value)}" for key, value in settings.items()}
    lines, key = [], ""
    for line in text.splitlines():
        is_blank = line[:1] in ("", "#")
        if not is_blank and line[0] not in " \t-]}":  # a key; what follows up to the next one is its value
            key = line.partition(":")[0].strip(" \"'")
            lines += [ours.pop(key)] if key in ours else []
        if is_blank or key not in settings:
            lines.append(line)
    return "\n".join([*lines, *ours.values()]) + "\n"
