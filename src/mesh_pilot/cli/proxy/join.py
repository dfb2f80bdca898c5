"""``mesh-pilot proxy join``: a machine becomes part of the mesh by one file.

The order is such that a mistake changes as little as possible: it shows the token first, which needs the
control plane's roots, address and consent; then it writes files; then it starts the proxy; and it redirects traffic
only once that is ready. Everything may be done again, with the same bundle or another one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from mesh_pilot.cli.lib.options import one_line
from mesh_pilot.cli.proxy.changes import SYSTEMD, call, put, remove_unit
from mesh_pilot.cli.proxy.flags import DEFAULT_FILE
from mesh_pilot.cli.proxy.install import (
    IPTABLES,
    PROXY,
    UNITS,
    USER,
    capabilities,
    check_startable,
    files,
    redirection,
    this_program,
)

if TYPE_CHECKING:
    import pwd

    from mesh_pilot.agent.identity.material import IdentityMaterial
    from mesh_pilot.cli.proxy.bundle import JoinBundle

_HEADER = "# Settings of this machine's proxy. mesh-pilot proxy join replaces its own, below, and keeps others.\n"


class JoinPlace(NamedTuple):
    """The folders of a proxy, and the user that it runs as where that is not who joins."""

    config: Path
    state: Path
    run: Path
    user: pwd.struct_passwd | None = None

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """Be the proxy's user for the block: its folders lead no file elsewhere, and rules in force let it through."""
        if self.user is None:
            yield
            return
        os.setegid(self.user.pw_gid)
        os.seteuid(self.user.pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)

    def make(self) -> None:
        """Make the folders. Raises ClickException."""
        from mesh_pilot.cli.proxy.machine import why_unusable

        for folder in (self.state, self.run):
            if self.user is not None and not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
                os.chown(folder, self.user.pw_uid, self.user.pw_gid)
            with self.as_user():
                reason = why_unusable(folder)
            if reason:
                raise click.ClickException(f"{folder}: {reason}")

    def put(self, name: str, content: str, *, is_secret: bool) -> bool:
        """Write a file of the settings unless it is there as it shall be; True if it was written."""
        if not is_secret:
            return put(self.config / name, content)
        if self.user is None:
            return put(self.config / name, content, 0o600)
        return put(self.config / name, content, 0o640, group=self.user.pw_gid)


@click.command("join")
@click.argument("bundle", type=click.Path(path_type=Path), metavar="BUNDLE")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["sidecar", "router"]),
    default="sidecar",
    show_default=True,
    help="sidecar: the proxy of a workload; router: a gateway.",
)
@click.option("--foreground", is_flag=True, help="Run the proxy here and now, without systemd; also as any user.")
@click.option("--no-redirect", is_flag=True, help="Leave traffic as it is: applications connect to Envoy themselves.")
def command(*, bundle: Path, kind: str, foreground: bool, no_redirect: bool) -> None:
    """Make this machine part of the mesh by a BUNDLE, of mesh-pilot token create --bundle.

    Gets the certificate, writes settings and units of systemd, starts the proxy, and then redirects traffic to it.
    Again with another bundle: its token, roots and addresses replace those before. mesh-pilot proxy leave undoes it.
    """
    from mesh_pilot.cli.proxy.bundle import JoinBundleError, read

    with one_line(JoinBundleError):
        found = read(bundle)
    interception = "NONE" if no_redirect else str(found.settings.get("interception", "REDIRECT"))
    redirects = kind == "sidecar" and interception != "NONE"
    _refuse(bundle, found, foreground=foreground, redirects=redirects)
    program = this_program()
    if not foreground:
        check_startable(program, USER, redirects=redirects, is_here=True)
    place = _place()
    place.make()
    material = _certificate(found, place)
    has_changed = _write(found, place, interception)
    dns = str(found.settings.get("dns", "")).lower() in ("true", "yes", "on", "1")
    told = f"this machine is {material.identity} in the mesh; remove {bundle}: it is a secret, and has done its work"
    if foreground:
        click.echo(told)
        if redirects:
            _redirect(redirection(user=USER, interception=interception, dns=dns))
        _become_proxy(place, kind, capabilities(kind, interception))
    units = files(kind=kind, program=program, user=USER, interception=interception, dns=dns, service=None)
    start(units, has_changed=has_changed)
    click.echo(told)


def _refuse(path: Path, bundle: JoinBundle, *, foreground: bool, redirects: bool) -> None:
    """Refuse what cannot succeed, before anything is changed. Raises ClickException."""
    from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy

    if os.geteuid() != 0 and not foreground:
        raise click.ClickException("joining installs units and users: run it as root, or with --foreground")
    if os.geteuid() != 0 and redirects:
        raise click.ClickException("redirection needs root: run it as root, or with --no-redirect")
    if not foreground and not (SYSTEMD.is_dir() and shutil.which("systemctl")):
        raise click.ClickException("systemd does not run here: start the proxy with --foreground")
    if bundle.expires <= datetime.now(UTC):
        raise click.ClickException(f"{path} has expired, {bundle.expires:%F %T} UTC; {_another(bundle)}")
    binary = bundle.settings.get("envoy")
    with one_line(EnvoyError):
        find_envoy(Path(binary) if binary else None)


def _another(bundle: JoinBundle) -> str:
    named = f"{bundle.identity.service_account} --namespace {bundle.identity.namespace}"
    return f"make another at the control plane: mesh-pilot token create {named} --bundle FILE"


def folders() -> tuple[Path, Path, Path]:
    """The folders of settings, of state, and of what a reboot loses: those of the units for root, else the user's."""
    from mesh_pilot.cli.proxy.machine import run_folder, state_folder

    state = state_folder({})
    if os.geteuid() == 0:
        return DEFAULT_FILE.parent, state, run_folder({}, state)
    import platformdirs

    return (
        platformdirs.user_config_path("mesh-pilot"),
        state,
        run_folder({**os.environ, "RUNTIME_DIRECTORY": ""}, state),
    )


def _place() -> JoinPlace:
    return JoinPlace(*folders(), _user() if os.geteuid() == 0 else None)


def _user() -> pwd.struct_passwd:
    """The proxy's user, which is made if missing. Raises ClickException."""
    import pwd

    try:
        return pwd.getpwnam(USER)
    except KeyError:
        call("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", USER)
        click.echo(f"made the user {USER}")
        return pwd.getpwnam(USER)


def _certificate(bundle: JoinBundle, place: JoinPlace) -> IdentityMaterial:
    """The first certificate, kept where the agent finds it. Raises ClickException with what each plane said."""
    import trio

    from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
    from mesh_pilot.agent.identity.credentials import named_in
    from mesh_pilot.agent.identity.folder import CertificateFolder
    from mesh_pilot.agent.identity.identity import FOLDER
    from mesh_pilot.agent.identity.material import MaterialError, new_key
    from mesh_pilot.agent.identity.signing import NotSigned, SigningFailure, signed_material
    from mesh_pilot.net.rpc import CertificateFiles, RpcError, client_tls

    metadata = {"authorization": f"Bearer {bundle.files['token-file'].strip()}"}
    own, problems = CertificateFolder(place.state / FOLDER), []
    with _file_errors(own.path), place.as_user(), NamedTemporaryFile(suffix=".pem") as roots, one_line(RpcError):
        own.prepare()  # what could not be kept would cost a use of the token
        roots.write(bundle.files["tls-ca"].encode())
        roots.flush()
        request = partial(
            signed_material,
            key=new_key("EC"),
            name=named_in(metadata),
            tls=client_tls(CertificateFiles(trusted=Path(roots.name))),
            server_name=bundle.settings.get("tls-server-name"),
            metadata=metadata,
        )
        for pilot in bundle.settings["pilot"]:
            try:
                material = trio.run(request, Pilot.parse(pilot).address)
            except NotSigned as error:
                if error.kind is SigningFailure.PROOF:
                    raise click.ClickException(f"the control plane refuses: {error}; {_another(bundle)}") from None
                problems.append(str(error))
                continue
            except MaterialError as error:
                raise click.ClickException(f"{pilot}: its answer cannot be used: {error}") from None
            own.save(material)
            return material
    raise click.ClickException(f"no control plane signs a certificate: {'; '.join(problems)}; nothing was started")


@contextmanager
def _file_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}") from None


def _write(bundle: JoinBundle, place: JoinPlace, interception: str) -> bool:
    """Write the settings and what they name; True if anything is new. Raises ClickException."""
    from mesh_pilot.cli.proxy.bundle import FILES, merged

    place.config.mkdir(parents=True, exist_ok=True)
    changes = []
    for setting, content in bundle.files.items():
        changes.append(place.put(FILES[setting], content, is_secret=setting != "tls-ca"))
    named = {setting: str(place.config / FILES[setting]) for setting in bundle.files}
    settings = {**bundle.settings, **named, "interception": interception}
    file = place.config / DEFAULT_FILE.name
    text = file.read_text(encoding="utf-8") if file.exists() else _HEADER
    return any([*changes, place.put(file.name, merged(text, settings), is_secret=False)])


def _redirect(flags: list[str]) -> None:
    """Put the rules in force: before the proxy starts, so that nothing gets around it. Raises ClickException."""
    from mesh_pilot.cli.proxy.iptables import apply_command

    apply_command.main(flags, prog_name="mesh-pilot iptables apply", standalone_mode=False)


def _become_proxy(place: JoinPlace, kind: str, rights: list[str]) -> NoReturn:
    """Run the proxy in this process, with no right of root's but ``rights``. Raises ClickException."""
    command = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]
    command += ["proxy", kind, "--config", str(place.config / DEFAULT_FILE.name)]
    environment = {**os.environ, "STATE_DIRECTORY": str(place.state), "RUNTIME_DIRECTORY": str(place.run)}
    if place.user is not None:
        caps = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in rights)
        flags = ["--inh-caps", caps, "--ambient-caps", caps] if caps else []
        command = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", *flags, "--", *command]
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from None


def start(units: Mapping[str, str], *, has_changed: bool) -> None:
    """Install the units, start the proxy, and then the redirection. Raises ClickException."""
    written = [put(Path("/") / path, text) for path, text in units.items()]
    redirects = f"{UNITS}/{IPTABLES}.service" in units
    if not redirects:
        remove_unit(IPTABLES)
    if any(written):
        call("systemctl", "daemon-reload")
    call("systemctl", "enable", PROXY)
    how = "restart" if any(written) else "reload-or-restart" if has_changed else "start"
    try:
        call("systemctl", how, PROXY)
    except click.ClickException as error:
        with suppress(click.ClickException):
            click.echo(call("journalctl", "-u", PROXY, "-n", "10", "-o", "cat", "--no-pager"), err=True)
        raise click.ClickException(
            f"the proxy is not ready: {error.format_message()}; see journalctl -u {PROXY}; it is tried on, and no"
            " traffic is redirected yet: join again once it is ready"
        ) from None
    if redirects:
        call("systemctl", "enable", IPTABLES)
        call("systemctl", "reload-or-restart", IPTABLES)
