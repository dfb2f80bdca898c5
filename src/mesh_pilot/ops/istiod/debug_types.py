"""The types of istiod's debug pages over xDS."""

from __future__ import annotations

DEBUG = "istio.io/debug"
SYNCZ = "istio.io/debug/syncz"
CONFIG_DUMP = "istio.io/debug/config_dump"
DEBUG_TYPES = (DEBUG, SYNCZ, CONFIG_DUMP)
