"""The Kubernetes Gateway API, as Istio understands it: its objects become Istio's Gateways, VirtualServices and
DestinationRules, and each has a status with conditions.

Pure functions of one object and an ``Objects``, which says what else there is. The World (``world/gateway_api.py``)
keeps the objects and calls these for what a change touches.
"""
