"""The injector in force, as its settings' file says it now; and injection as the API server asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio

from mesh_pilot.kubernetes.webhooks.admission import AdmissionAnswer, AdmissionRequest
from mesh_pilot.kubernetes.webhooks.injection.configuration import (
    MAX_BYTES,
    InjectionSettings,
    InjectionSettingsError,
    read_settings,
)
from mesh_pilot.kubernetes.webhooks.injection.context import InjectionTemplateError
from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionError, InjectionMesh, Injector, difference

log = structlog.get_logger(scope="webhooks")

LOOK_SECONDS = 2.0
"""The interval at which the file is looked at. A ConfigMap's is a link in a folder of links, which is replaced."""


class SidecarSettingsFile:
    """The injector of a file of settings, over those of the flags. State: the injector in force, and the file's text
    when it was last read."""

    def __init__(self, base: InjectionSettings, path: Path | None) -> None:
        """Raises InjectionSettingsError, InjectionTemplateError for what is there now."""
        self._base = base
        self._path = path
        self._text: bytes | None = None
        self._refused = ""
        self.injector = self._read() or Injector.of(base)

    def __repr__(self) -> str:
        return f"<SidecarSettingsFile {self._path or 'none'}>"

    def look(self) -> None:
        """Take the file as it is now; where it cannot be used, the last good settings stay, with a line in the log."""
        try:
            injector = self._read()
        except (InjectionSettingsError, InjectionTemplateError) as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.error("settings of injection refused", reason=str(error), effect="the last good ones are kept")
            return
        if injector is not None:
            self.injector = injector
            log.info("settings of injection changed", file=str(self._path), templates=sorted(injector.templates))
        if injector is not None or self._refused:
            self._refused = ""

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while self._path is not None:
            await trio.sleep(LOOK_SECONDS)
            self.look()

    def _read(self) -> Injector | None:
        """The injector of a string that was not read yet; None for one that was, or without a file."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InjectionSettingsError(f"{self._path}: {error.strerror}") from None
        if text == self._text:
            return None
        self._text = text
        try:
            return Injector.of(read_settings(text, self._base))
        except (InjectionSettingsError, InjectionTemplateError) as error:
            raise type(error)(f"{self._path}: {error}") from None


MeshOf = Callable[[str, Mapping[str, str], Mapping[str, str]], InjectionMesh]
"""The mesh as a Pod's namespace, labels and annotations see it."""

_BROKEN = (TypeError, AttributeError, LookupError, ValueError, RecursionError)
"""The errors of reading an object that is not a Pod."""


def pod_of(request: AdmissionRequest) -> dict[str, object] | None:
    """The Pod that is to be; None where there is nothing to inject into."""
    if request.operation != "CREATE" or not isinstance(request.object, dict):
        return None
    return request.object if request.object.get("kind", "Pod") == "Pod" else None


def inject_into(
    injector: Injector, request: AdmissionRequest, mesh: InjectionMesh, variables: Mapping[str, str]
) -> tuple[AdmissionAnswer, str]:
    """The answer to a request with a Pod, and why nothing is injected; empty if a sidecar is."""
    pod = request.object
    namespace = request.namespace or (pod.get("metadata") or {}).get("namespace") or "default"
    try:
        found = injector.inject(pod, namespace, mesh, variables=variables)
        patch = list(difference(pod, found.pod)) if found.is_injected else []
    except InjectionError as error:
        return AdmissionAnswer(allowed=False, code=422, message=f"{request.place}: {error}"), "refused"
    except _BROKEN as error:
        reason = f"this is not a Pod: {type(error).__name__}: {error}"
        return AdmissionAnswer(allowed=False, code=400, message=f"{request.place}: {reason}"), "refused"
    return AdmissionAnswer(patch=patch, warnings=found.warnings), "" if found.is_injected else found.reason
