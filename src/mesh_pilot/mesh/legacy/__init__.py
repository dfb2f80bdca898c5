"""The security kinds of Istio 1.1 to 1.5: which of their objects are in force for a port, and what they say.

These kinds name services, while today's select workloads. So they are read for each port of a workload, with the
services that it serves there (``ports``): ``authentication`` has the Policy in force, ``authorization`` the roles.
"""
