"""The agent on a workload's machine, ``mesh-pilot proxy``: what Envoy needs next to it, in one process.

- ``run``: puts the parts together; the bootstrap that Envoy starts with.
- ``status``: the HTTP server of readiness, merged metrics and rewritten probes.
- ``registration``: the service in the local Consul agent.
- ``traffic``: what becomes of requests: Envoy's counters, reported to the control plane.
- ``envoy``: Envoy's life as a state machine, and what it does: started, watched, taken over from, drained.
- ``health``: probes of the application.
- ``dns``: names of the mesh answered, all others forwarded.
- ``relay``: the connection to one of several control planes, Envoy's xDS and the agent's own through it, and the last
  answers on disk.
- ``identity``: the workload's key and certificate, renewed, and given to Envoy over SDS.
- ``settings``: everything that can be set.
- ``bootstrap``: the parts of the file that Envoy starts with.
- ``interception``: the rules of iptables or nftables by which traffic goes through Envoy.
- ``base``: values that tasks wait for, small messages, what the agent hands to its next version.

It knows nothing of the control plane's World. It stays light: no message of Envoy's API is imported
before it is needed.
May import: ``identity``, ``istio``, ``net``, ``model``, ``base``.
"""
