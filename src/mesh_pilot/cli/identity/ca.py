"""``mesh-pilot ca``: the CA in its folder or in Consul: make a root, look at it, rotate it, revoke certificates.

The commands change the CA's files only; running control planes read them. Why it is so:

- The CA can be rotated while every control plane is down, and by whoever may write the files: there is no order that a
  plane would have to authorise. What is lost is atomicity over replicas, so each plane says on its page which files it
  has read, and a step of a rotation asks all of them first.
- Every change is read, change, compare and write in one call (`_change`): two operators cannot undo each other's step.
- A step that would cut proxies off is refused, and says who; --force is for those that never come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from mesh_pilot.cli.identity.ca_place import with_store
from mesh_pilot.cli.lib.options import one_line
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.plane.client import PlaneClient, asks_planes

if TYPE_CHECKING:
    from mesh_pilot.identity.authority.material import Material
    from mesh_pilot.identity.authority.revoked_identities import Untils
    from mesh_pilot.identity.authority.rotation import Files
    from mesh_pilot.identity.authority.store import MaterialStore, StoredFiles

T = TypeVar("T")

_BEFORE_FINISH = (
    "before finish, replace the roots of clients that know them from a file (XDS_ROOT_CA of Istio's agent, --tls-ca,"
    " bootstraps) by the output of mesh-pilot ca root, and let them reconnect"
)

_force = click.option(
    "--force", is_flag=True, help="Do it although proxies have not followed, or their state is unknown."
)


@click.group("ca", cls=CommandGroup)
def command() -> None:
    """Look after the CA, in a folder or in Consul's KV store.

    To replace its root without a failed request: ca rotate begin, then switch, then finish, each once proxies have
    followed; ca status and /ready say so. docs/certificates.md has all of it.
    """


@command.command("init")
@with_store
def init(store: MaterialStore) -> None:
    """Make a root where there is none, as discovery does at its first start."""

    def made(stored: StoredFiles) -> Files:
        from mesh_pilot.identity.authority.authority import ROOT_NAME
        from mesh_pilot.identity.authority.material import has_ca
        from mesh_pilot.identity.authority.rotation import initial

        if has_ca(stored.files):
            raise click.ClickException(f"{store.place} has a CA already: {', '.join(sorted(stored.files))}")
        return {**stored.files, **initial(ROOT_NAME, _now())}

    _change(store, made)
    click.echo(f"a root was made in {store.place}")


@command.command("root")
@with_store
def root(store: MaterialStore) -> None:
    """Print the roots that are trusted, in PEM: what an agent needs to know this mesh by."""
    click.echo(trusted_roots(store).decode(), nl=False)


@command.command("status")
@with_store
@asks_planes
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def status(store: MaterialStore, planes: Sequence[PlaneClient], output: str) -> None:
    """Show who signs, which roots are trusted, and how far a rotation has come."""
    from mesh_pilot.identity.authority.rotation import NEXT_STEP, RotationPhase, phase_of

    identities = {str(each): f"{end:%FT%TZ}" for each, end in _identities(store).items() if end > _now()}
    if identities and not has_own_ca(store):  # of a CA elsewhere (--ca-signer) a folder has nothing else
        _show_identities({"revokedIdentities": identities}, output)
        return
    material = _material(store)
    asked = _ask(planes, material)
    reasons = asked.reasons
    phase = phase_of(material)
    revoked = len({entry.serial_number for crl in material.crls for entry in crl})
    found: dict[str, Any] = {
        "phase": phase.value,
        "next": f"mesh-pilot ca rotate {NEXT_STEP[phase]}",
        "waitingFor": reasons,
        "connectedBeforeRotation": asked.before_rotation,
        "signing": _line(material.issuer.certificate),
        "roots": [_line(each) for each in material.roots],
        "revoked": revoked,
        "revokedIdentities": identities,
    }
    if output == "json":
        print_value(found, "json")
        return
    click.echo(f"signing   {found['signing']}")
    for line in found["roots"]:
        click.echo(f"trusted   {line}")
    click.echo(f"revoked   {revoked} certificates")
    _show_identities(found, output)
    click.echo(f"rotation  {phase.value}; next: {found['next']}")
    if phase is not RotationPhase.STEADY:
        click.echo(f"  {_BEFORE_FINISH}")
    for reason in reasons:
        click.echo(f"  wait: {reason}")


@command.command("revoke")
@with_store
@click.argument("certificates", nargs=-1, metavar="SERIAL-OR-FILE...")
@click.option("--identity", help="Revoke an identity in their place, spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT.")
@click.option("--until", help="Time until when, such as 2026-12-01T00:00:00Z; one in the past lifts it.")
def revoke(store: MaterialStore, certificates: tuple[str, ...], identity: str | None, until: str | None) -> None:
    """Revoke certificates that this CA signed, or an identity until a time.

    Certificates are PEM files, or serial numbers in hexadecimal digits. Proxies refuse them from the next push on, and
    so does the TLS port. Their owner can get others: with a certificate that it renewed, or a token.

    An identity gets nothing from any control plane that shares the CA, whatever its evidence, and its streams end. The
    certificates that it has stay good to other proxies until they end: revoke those, too.
    """
    if identity is not None or until is not None:
        if identity is None or until is None or certificates:
            raise click.UsageError("give --identity with --until, or certificates")
        _revoke_identity(store, identity, until)
        return
    if not certificates:
        raise click.UsageError("name certificates, or --identity with --until")
    serials: set[int] = set()

    def changed(stored: StoredFiles) -> Files:
        from mesh_pilot.identity.authority.rotation import revoke

        material = _read(store, stored)
        serials.update(_serial(each, material) for each in certificates)
        return revoke(stored.files, material, serials, _now())

    _change(store, changed)
    click.echo(f"revoked: {', '.join(f'{serial:x}' for serial in sorted(serials))}")


def _revoke_identity(store: MaterialStore, text: str, time: str) -> None:
    from mesh_pilot.identity.authority.revoked_identities import read_time, with_identity
    from mesh_pilot.model.spiffe import FORM, parse_identity

    identity = parse_identity(text)
    if identity is None:
        raise click.UsageError(f"--identity {text}: is not of the form {FORM}")
    try:
        until = read_time(time)
    except ValueError:
        raise click.UsageError(f"--until {time}: is not a time such as 2026-12-01T00:00:00Z") from None
    now = _now()

    def changed(stored: StoredFiles) -> Files:
        return with_identity(stored.files, store.place, identity, until, now)

    _change(store, changed)
    if until > now:
        click.echo(f"revoked until {until:%F %T} UTC: {identity}")
    else:
        click.echo(f"no longer revoked: {identity}")


@command.group("rotate")
def rotate() -> None:
    """Replace the root in three steps, each once proxies have followed the one before."""


@rotate.command("begin")
@with_store
def begin(store: MaterialStore) -> None:
    """Make a new root. Both roots are trusted from now on; the old one signs."""

    def changed(stored: StoredFiles) -> Files:
        from mesh_pilot.identity.authority.authority import ROOT_NAME
        from mesh_pilot.identity.authority.rotation import begin

        return begin(stored.files, _read(store, stored), ROOT_NAME, _now())

    _change(store, changed)
    click.echo(
        "both roots are trusted, and the old one signs; next, once proxies have both: mesh-pilot ca rotate switch"
    )
    if _material(store).cross is None:
        click.echo(
            "the old root allows no certificate below it (pathlen:0), so it has not signed the new one: clients that"
            " know their root from a file need the output of mesh-pilot ca root there before switch"
        )


@rotate.command("switch")
@with_store
@asks_planes
@_force
def switch(store: MaterialStore, planes: Sequence[PlaneClient], force: bool) -> None:
    """Let the new root sign. Both roots are trusted.

    Clients that know only the old root, from a file, verify what the new one signs by a certificate of the old root,
    until finish. Those named are connected since before begin, so their file cannot have been read since.
    """
    asked: list[_Asked] = []

    def changed(stored: StoredFiles) -> Files:
        from mesh_pilot.identity.authority.rotation import switch

        material = _read(store, stored)
        files = switch(stored.files, material)
        consequence = "those who do not trust the new root would refuse its certificates"
        asked[:] = [_check(planes, material, force, consequence)]
        return files

    _change(store, changed)
    click.echo("the new root signs; next, once no certificate of the old one is in force: mesh-pilot ca rotate finish")
    click.echo(_BEFORE_FINISH)
    for each in asked:
        for name in each.before_rotation:
            click.echo(f"connected since before the rotation: {name}")


@rotate.command("finish")
@with_store
@asks_planes
@_force
def finish(store: MaterialStore, planes: Sequence[PlaneClient], force: bool) -> None:
    """Drop the old root. Its certificates are refused from now on.

    Clients whose file of roots has only the old one cannot connect any more: put the output of ca root there before.
    """

    def changed(stored: StoredFiles) -> Files:
        from mesh_pilot.identity.authority.rotation import finish

        material = _read(store, stored)
        files = finish(stored.files, material)
        consequence = "those who have a certificate of the old root, or know only the old root, would be cut off"
        _check(planes, material, force, consequence)
        return files

    _change(store, changed)
    click.echo("the old root is gone; only the new one is trusted")


@attrs.frozen
class _Asked:
    """The answers of control planes about a rotation."""

    reasons: list[str]
    """Why the next step should wait, by control plane."""
    before_rotation: list[str]
    """Clients with a root from a file that are connected since before the rotation."""


def _check(planes: Sequence[PlaneClient], material: Material, force: bool, consequence: str) -> _Asked:
    """Refuse a step that proxies are not ready for. Raises ClickException."""
    asked = _ask(planes, material)
    reasons = asked.reasons
    if reasons and not force:
        raise click.ClickException(f"not yet: {'; '.join(reasons)}; {consequence}. Wait, or say --force")
    for reason in reasons:
        click.echo(f"forced although {reason}", err=True)
    return asked


def _ask(planes: Sequence[PlaneClient], material: Material) -> _Asked:
    """Ask control planes how far they and their clients have followed a rotation."""
    from mesh_pilot.identity.authority.authority import fingerprint
    from mesh_pilot.identity.authority.rotation import RotationPhase, phase_of

    phase = phase_of(material)
    if phase is RotationPhase.STEADY:
        return _Asked([], [])
    roots = sorted(map(fingerprint, material.roots))
    reasons: list[str] = []
    before: set[str] = set()
    for plane in planes:
        pilot = plane.address
        try:
            code, answer = plane.request("GET", "/debug/ca")
            if code != 200:
                raise click.ClickException(answer.strip().partition("\n")[0][:200] or f"status {code}")
            page = json.loads(answer)
            known = sorted(root["sha256"] for root in page["roots"]), page["phase"], page["signing"]["sha256"]
            reasons += [f"{pilot}: {reason}" for reason in page["pending"]]
            before |= set(page["proxies"]["before_rotation"])
        except click.ClickException as error:
            reasons.append(f"{pilot} does not say whether proxies have followed: {error.format_message()}")
            continue
        except (ValueError, LookupError, TypeError) as error:
            reasons.append(f"{pilot} does not say whether proxies have followed ({type(error).__name__})")
            continue
        if known != (roots, phase.value, fingerprint(material.issuer.certificate)):
            reasons.append(f"{pilot} has not read the CA's latest files")
    return _Asked(reasons, sorted(before))


def _change(store: MaterialStore, change: Callable[[StoredFiles], Files]) -> None:
    """Read the store, and write what ``change`` makes of it. Raises ClickException."""
    import trio

    from mesh_pilot.identity.authority.material import AuthorityError
    from mesh_pilot.identity.authority.store import StoreError

    async def changed() -> None:
        stored = await store.read()
        await store.write(change(stored), stored.version)

    with one_line(AuthorityError, StoreError):
        trio.run(changed)


def _show_identities(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_value(found, "json")
        return
    for name, end in found["revokedIdentities"].items():
        click.echo(f"revoked   {name} until {end}")


def has_own_ca(store: MaterialStore) -> bool:
    """True if the store has a CA. Raises ClickException."""
    import trio

    from mesh_pilot.identity.authority.material import has_ca
    from mesh_pilot.identity.authority.store import StoreError

    with one_line(StoreError):
        return has_ca(trio.run(store.read).files)


def _material(store: MaterialStore) -> Material:
    """The material of a store. Raises ClickException."""
    import trio

    from mesh_pilot.identity.authority.material import AuthorityError
    from mesh_pilot.identity.authority.store import StoreError

    with one_line(AuthorityError, StoreError):
        return _read(store, trio.run(store.read))


def trusted_roots(store: MaterialStore) -> bytes:
    """The roots that are trusted, in PEM. Raises ClickException."""
    from mesh_pilot.identity.authority.material import joined

    return joined(_material(store).roots)


def _identities(store: MaterialStore) -> Untils:
    """The revoked identities of a store. Raises ClickException."""
    import trio

    from mesh_pilot.identity.authority.material import AuthorityError
    from mesh_pilot.identity.authority.revoked_identities import read_identities
    from mesh_pilot.identity.authority.store import StoreError

    with one_line(AuthorityError, StoreError):
        return read_identities(trio.run(store.read).files, store.place)


def _read(store: MaterialStore, stored: StoredFiles) -> Material:
    from mesh_pilot.identity.authority.material import has_ca, read_material

    if not has_ca(stored.files):
        raise click.ClickException(f"{store.place} has no CA; discovery makes one, or: mesh-pilot ca init")
    return read_material(stored.files, store.place, _now())


def _serial(text: str, material: Material) -> int:
    """The serial number that an argument names. Raises ClickException."""
    from cryptography import x509

    from mesh_pilot.identity.authority.material import issued

    path = Path(text)
    if not path.exists():
        try:
            return int(text.replace(":", ""), 16)
        except ValueError:
            raise click.ClickException(f"{text}: neither a file nor a serial number in hexadecimal digits") from None
    try:
        leaf = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{text}: not a PEM certificate: {error}") from None
    if not any(issued(pair.certificate, leaf) for pair in material.key_pairs):
        raise click.ClickException(
            f"{text}: was signed by {leaf.issuer.rfc4514_string() or 'somebody else'}, whose key is not here; "
            "revoke it there, and put that CA's list into ca-crl.pem"
        )
    return leaf.serial_number


def _line(certificate: Any) -> str:
    from mesh_pilot.identity.authority.authority import fingerprint

    name = certificate.subject.rfc4514_string()
    return f"{name}, until {certificate.not_valid_after_utc:%F}, sha256 {fingerprint(certificate)}"


def _now() -> datetime:
    return datetime.now(UTC)
