"""``mesh-pilot token``: makes, lists and revokes join tokens."""

from __future__ import annotations

import getpass
import ipaddress
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mesh_pilot.cli.lib.options import FlagType, duration, one_line
from mesh_pilot.cli.lib.state_folder import ca_folder_of_plane
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import table

if TYPE_CHECKING:
    from mesh_pilot.identity.tokens.join_tokens import JoinTokens
    from mesh_pilot.identity.tokens.store import TokenRecord

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
COLUMNS = ("ID", "IDENTITY", "STATE", "EXPIRES", "USES", "FROM", "MADE BY", "LAST USED")


@FlagType
def cidr(text: str) -> str:
    """A network such as ``10.0.0.0/8``, or an address."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write a network such as 10.0.0.0/8") from None


def _folder_options(command: F) -> F:
    folder = click.option(
        "--token-dir",
        type=PATH,
        envvar="MESH_PILOT_TOKEN_DIR",
        help="Folder of join tokens, the control plane's.  [default: join-tokens in --ca-dir]",
    )
    ca = click.option("--ca-dir", type=PATH, envvar="MESH_PILOT_CA_DIR", help="Folder of the control plane's CA.")
    state = click.option(
        "--state-dir", type=PATH, envvar="MESH_PILOT_STATE_DIR", help="Folder of the control plane's state."
    )
    return folder(ca(state(command)))


_output = click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")


@click.group("token", cls=CommandGroup)
def command() -> None:
    """Make, list and revoke join tokens, with which new workloads get their first certificate.

    Run it where the control plane's folder of join tokens is. A running control plane follows at once.
    """


@command.command("create", context_settings={"show_default": True})
@click.option("--namespace", required=True, help="The workload's namespace.")
@click.option("--service-account", required=True, help="The workload's service account.")
@click.option("--ttl", type=duration, default="1h", help="How long the token can be used, such as 30m.")
@click.option("--single-use", is_flag=True, help="It can be used once: --uses 1.")
@click.option("--uses", type=click.IntRange(min=1), help="How often it can be used.  [default: any number of times]")
@click.option("--cidr", "networks", type=cidr, multiple=True, help="It can be used from this network; repeatable.")
@click.option("--trust-domain", help="The mesh's trust domain.  [default: that of --mesh-config]")
@click.option(
    "--mesh-config", type=PATH, envvar="MESH_PILOT_MESH_CONFIG", help="The control plane's mesh.yaml.  [default: none]"
)
@_folder_options
@_output
def create(
    *,
    namespace: str,
    service_account: str,
    ttl: float,
    single_use: bool,
    uses: int | None,
    networks: tuple[str, ...],
    trust_domain: str | None,
    mesh_config: Path | None,
    token_dir: Path | None,
    ca_dir: Path | None,
    state_dir: Path | None,
    output: str,
) -> None:
    """Make a token and print it, for the only time.

    Its text goes to standard output, what to do with it to standard error.
    """
    from mesh_pilot.model.spiffe import Identity

    if single_use and uses not in (None, 1):
        raise click.UsageError(f"--single-use and --uses {uses} contradict each other")
    identity = Identity(trust_domain or _trust_domain(mesh_config), namespace, service_account)
    with _errors():
        tokens = _tokens(token_dir, ca_dir, state_dir)
        made = tokens.create(
            identity,
            timedelta(seconds=ttl),
            max_uses=1 if single_use else uses or 0,
            networks=networks,
            created_by=_user(),
        )
    if output == "json":
        click.echo(json.dumps({"token": made.text, **_as_json(made.record)}, indent=2))
        return
    click.echo(made.text)
    click.echo(
        "Next: put it into a file on the workload's machine and run there, before "
        f"{made.record.expires:%F %T} UTC: mesh-pilot proxy sidecar --token-file FILE --tls-ca ROOTS"
        " --pilot HOST:15012 (for a certificate alone: mesh-pilot certificate, with the same flags); "
        f"revoke it with: mesh-pilot token revoke {made.record.id}",
        err=True,
    )


@command.command("list", context_settings={"show_default": True})
@_folder_options
@_output
def list_(*, token_dir: Path | None, ca_dir: Path | None, state_dir: Path | None, output: str) -> None:
    """List tokens, also those that ended in the last 30 days. Their texts are not known to anybody."""
    with _errors():
        records = _tokens(token_dir, ca_dir, state_dir).records()
    if output == "json":
        click.echo(json.dumps([_as_json(record) for record in records], indent=2))
    elif records:
        for line in table([COLUMNS, *map(_row, records)]):
            click.echo(line)
    else:
        click.echo("there are no join tokens")


@command.command("revoke", context_settings={"show_default": True})
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_folder_options
def revoke(*, ids: tuple[str, ...], token_dir: Path | None, ca_dir: Path | None, state_dir: Path | None) -> None:
    """Refuse tokens from now on. Certificates and streams that they gave stay."""
    with _errors():
        try:
            revoked = _tokens(token_dir, ca_dir, state_dir).revoke(ids)
        except KeyError as error:
            raise click.ClickException(f"there is no join token {error.args[0]}; see: mesh-pilot token list") from None
    for record in revoked:
        click.echo(f"revoked {record.id} of {record.identity}, used {_times(record.uses)}")


@command.command("rotate-key", context_settings={"show_default": True})
@click.option("--drop-old", is_flag=True, help="Refuse all tokens made so far: for when the key may have leaked.")
@_folder_options
def rotate_key(*, drop_old: bool, token_dir: Path | None, ca_dir: Path | None, state_dir: Path | None) -> None:
    """Sign tokens with a new key. A former one is accepted while a token that it signed is in force."""
    with _errors():
        added, dropped = _tokens(token_dir, ca_dir, state_dir).rotate_key(drop_old=drop_old)
    click.echo(f"signing with the key {added}; no longer accepted: {', '.join(dropped) or 'none'}")


def _tokens(token_dir: Path | None, ca_dir: Path | None, state_dir: Path | None) -> JoinTokens:
    from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
    from mesh_pilot.identity.tokens.join_tokens import JoinTokens

    folder = JoinTokenSettings(token_dir).within(ca_dir or ca_folder_of_plane(state_dir))
    if folder is None:
        raise click.UsageError(
            "name the folder of the control plane's join tokens with --token-dir, --ca-dir or --state-dir"
        )
    return JoinTokens(folder)


def _trust_domain(mesh_config: Path | None) -> str:
    from mesh_pilot.istio.reading.mesh import default_mesh
    from mesh_pilot.model.config import ConfigError
    from mesh_pilot.sources.base.contract import SourceError
    from mesh_pilot.sources.files.mesh import load_mesh_config

    if mesh_config is None:
        return default_mesh().trust_domain
    with one_line(ConfigError, SourceError):
        return load_mesh_config(str(mesh_config)).trust_domain


@contextmanager
def _errors() -> Iterator[None]:
    from mesh_pilot.identity.tokens.store import TokenStoreError

    with one_line(ValueError, TokenStoreError):
        yield


def _user() -> str:
    """The name of whoever runs the command, also under sudo."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _state(record: TokenRecord) -> str:
    if record.revoked:
        return "revoked"
    if record.expires <= datetime.now(UTC):
        return "expired"
    return "used-up" if record.max_uses and record.uses >= record.max_uses else "valid"


def _row(record: TokenRecord) -> list[str]:
    used = f"{record.last_used:%FT%TZ} {record.last_address}" if record.last_used else "-"
    return [
        record.id,
        str(record.identity),
        _state(record),
        f"{record.expires:%FT%TZ}",
        f"{record.uses}/{record.max_uses or 'any'}",
        ",".join(record.networks) or "anywhere",
        record.created_by or "-",
        used,
    ]


def _as_json(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "identity": str(record.identity),
        "state": _state(record),
        "created": record.created.isoformat(),
        "created_by": record.created_by,
        "expires": record.expires.isoformat(),
        "uses": record.uses,
        "max_uses": record.max_uses or None,
        "networks": list(record.networks),
        "revoked": record.revoked.isoformat() if record.revoked else None,
        "last_used": record.last_used.isoformat() if record.last_used else None,
        "last_address": record.last_address or None,
        "key": record.key_id,
    }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
