"""The one model of all sources' items: the reducer that writes it, its indexes, and the view that translators read.

May import: ``istio``, ``engine``, ``model``, ``base``, ``api``.
"""

from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.reducer import Reducer, ReducerStatistics
from mesh_pilot.world.view import View
from mesh_pilot.world.world import Revision, World

__all__ = ["Reducer", "ReducerStatistics", "Revision", "View", "VirtualServiceMeta", "World"]
