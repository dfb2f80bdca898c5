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

from mesh_pilot.cli.lib.options import FlagType, duration, one_line, pilot
from mesh_pilot.cli.lib.state_folder import ca_folder_of_plane, default_folder
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import table

if TYPE_CHECKING:
    from mesh_pilot.identity.tokens.join_tokens import JoinTokens, NewToken
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
@click.argument("account", metavar="SERVICE-ACCOUNT")
@click.option("--namespace", "-n", default="default", help="The workload's namespace.")
@click.option("--bundle", type=PATH, help="Write one file, with which a machine joins: mesh-pilot proxy join FILE.")
@click.option(
    "--pilot",
    "pilots",
    type=pilot,
    multiple=True,
    help="Where it reaches the control plane; repeatable.  [default: this machine's address, port 15012]",
)
@click.option("--config", type=PATH, help="More settings for its proxy, as in proxy.yaml, with the files they name.")
@click.option("--ttl", type=duration, default="1h", help="Time for which the token can be used, such as 30m.")
@click.option("--single-use", is_flag=True, help="It can be used once: --uses 1.")
@click.option("--uses", type=click.IntRange(min=1), help="Number of times that it can be used.  [default: no limit]")
@click.option("--cidr", "networks", type=cidr, multiple=True, help="It can be used from this network; repeatable.")
@click.option("--trust-domain", help="The mesh's trust domain.  [default: that of --mesh-config]")
@click.option(
    "--mesh-config", type=PATH, envvar="MESH_PILOT_MESH_CONFIG", help="The control plane's mesh.yaml.  [default: none]"
)
@_folder_options
@_output
def create(
    *,
    account: str,
    namespace: str,
    bundle: Path | None,
    pilots: tuple[str, ...],
    config: Path | None,
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
    """Make a token of a service account, and print it for the only time.

    Its text goes to standard output, what to do with it to standard error. With --bundle it goes into a file of mode
    0600 with everything else that a machine needs to join: the mesh's roots, the control plane's addresses, settings.
    """
    from mesh_pilot.model.spiffe import Identity

    if single_use and uses not in (None, 1):
        raise click.UsageError(f"--single-use and --uses {uses} contradict each other")
    if bundle is None and (pilots or config):
        raise click.UsageError("--pilot and --config are for a --bundle FILE")
    identity = Identity(trust_domain or _trust_domain(mesh_config), namespace, account)
    settings, files = _settings(pilots, config, lambda: _roots(ca_dir, state_dir)) if bundle else ({}, {})
    with _errors():
        tokens = _tokens(token_dir, ca_dir, state_dir)
        made = tokens.create(
            identity,
            timedelta(seconds=ttl),
            max_uses=1 if single_use else uses or 0,
            networks=networks,
            created_by=_user(),
        )
    if bundle is not None:
        _write(bundle, made, settings, files)
    where = None if bundle is None else f"{bundle}, for {identity} at the control plane {', '.join(settings['pilot'])}"
    _tell(made, bundle, where, output)


def _tell(made: NewToken, bundle: Path | None, where: str | None, output: str) -> None:
    """Print a token or where it is, and what to do with it."""
    if output == "json":
        shown = {"token": made.text} if bundle is None else {"bundle": str(bundle)}
        click.echo(json.dumps({**shown, **_as_json(made.record)}, indent=2))
        return
    by, revoke = f"before {made.record.expires:%F %T} UTC", f"revoke it with: mesh-pilot token revoke {made.record.id}"
    if bundle is None:
        click.echo(made.text)
        todo = (
            f"put it into a file on the workload's machine and run there, {by}: mesh-pilot certificate --token-file"
            " FILE --tls-ca ROOTS --pilot HOST:15012; or make it again with --bundle FILE, by which mesh-pilot proxy"
            " join does all of it"
        )
    else:
        click.echo(f"wrote {where}")
        todo = f"copy it to the machine and run there, {by}: mesh-pilot proxy join {bundle.name}"
    click.echo(f"Next: {todo}; {revoke}", err=True)


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


def _settings(
    pilots: tuple[str, ...], config: Path | None, roots: Callable[[], str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a bundle, and its files by the setting that names them; all but the token."""
    from mesh_pilot.cli.lib.settings_file import SettingsFileError
    from mesh_pilot.cli.proxy.bundle import settings_of
    from mesh_pilot.cli.proxy.machine import default_address

    with one_line(SettingsFileError, as_=click.UsageError):
        settings, files = ({}, {}) if config is None else settings_of(config)
    written = settings.get("pilot", [])
    settings["pilot"] = list(pilots) or (written.split() if isinstance(written, str) else written)
    if not settings["pilot"]:
        address = default_address()
        if not address:
            raise click.UsageError("this machine has no default route: give the control plane's address with --pilot")
        settings["pilot"] = [f"[{address}]:15012" if ":" in address else f"{address}:15012"]
    if "tls-ca" not in files:
        files["tls-ca"] = roots()
    return settings, files


def _roots(ca_dir: Path | None, state_dir: Path | None) -> str:
    """The roots in the folder of the CA; where it has none, those of the control plane that runs here, in PEM."""
    from mesh_pilot.cli.identity.ca import has_own_ca, trusted_roots
    from mesh_pilot.identity.authority.folder import FolderStore
    from mesh_pilot.safety.state.settings import ADMIN_SOCKET

    folder = ca_dir or ca_folder_of_plane(state_dir)
    socket = (state_dir or default_folder(os.environ)) / ADMIN_SOCKET
    is_wrong = ca_dir is not None and not ca_dir.is_dir()
    if folder is not None and (is_wrong or not socket.exists() or has_own_ca(FolderStore(folder))):
        return trusted_roots(FolderStore(folder)).decode()
    if not socket.exists():
        raise click.UsageError("say by which roots the control plane is known: --ca-dir, or tls-ca in --config")
    from mesh_pilot.cli.plane.requests import PlaneClient
    from mesh_pilot.identity.trust.spiffe_bundles import BundleError, read_bundle

    status, answer = PlaneClient(f"unix://{socket.absolute()}").request("GET", "/spiffe/bundle")
    try:
        return b"".join(read_bundle(json.loads(answer)).roots).decode()
    except (ValueError, AttributeError, BundleError):
        raise click.ClickException(f"{socket}: the control plane has no roots yet ({status}); try again") from None


def _write(path: Path, made: NewToken, settings: dict[str, Any], files: dict[str, str]) -> None:
    from mesh_pilot.cli.proxy.bundle import JoinBundle, written
    from mesh_pilot.identity.trust.private_files import replace

    bundle = JoinBundle(made.record.identity, made.record.expires, settings, {**files, "token-file": f"{made.text}\n"})
    try:
        replace(path.absolute(), written(bundle))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


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
