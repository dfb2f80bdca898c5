"""The one model of everything the sources said: the reducer that writes it, its indexes, the view translators read.

May import: ``incremental``, ``config``, ``model``, ``api``.
"""

from mesh_pilot.world.reducer import Reducer, ReducerStatistics
from mesh_pilot.world.view import View, VirtualServiceHead
from mesh_pilot.world.world import Revision, World

__all__ = ["Reducer", "ReducerStatistics", "Revision", "View", "VirtualServiceHead", "World"]
