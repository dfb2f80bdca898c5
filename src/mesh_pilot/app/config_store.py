"""The config store that the settings name, checked at the start."""

from __future__ import annotations

from mesh_pilot.app.config_cluster import NAME
from mesh_pilot.app.config_store_choice import store_of
from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.net.http.connection import HttpLimits
from mesh_pilot.sources.config_store.base import ConfigStore, ConfigStoreError

MAX_BODY_BYTES = 1024 * 1024
"""The largest object that is taken."""


def config_store_of(settings: Settings) -> ConfigStore | None:
    """The store; None: there is none. Raises StartError."""
    if not settings.config_store:
        return None
    try:
        return store_of(settings.config_store, settings.config_dirs, settings.registries, NAME)
    except ConfigStoreError as error:
        raise StartError(str(error)) from None


def http_limits(settings: Settings) -> HttpLimits:
    """The limits of the ports at which objects are taken."""
    return HttpLimits(body_bytes=MAX_BODY_BYTES) if settings.config_store else HttpLimits()
