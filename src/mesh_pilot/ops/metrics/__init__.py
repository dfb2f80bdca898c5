"""``/metrics``: the ``statistics()`` of all parts, under the names that Istio's dashboards use.

Each module has the metrics of one topic, as functions from the state of a plane. ``registry`` collects them at each
scrape, ``workers`` makes those of several workers into one.
"""

from mesh_pilot.ops.metrics.registry import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "Metrics"]
