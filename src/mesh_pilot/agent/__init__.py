"""The agent on a workload's machine, ``mesh-pilot proxy``: what Envoy needs beside it, in one process.

- ``settings``: everything that can be set; ``observable``: a value that tasks wait for changes of.
- ``identity/``: the workload's key and certificate, renewed, and given to Envoy over SDS.
- ``relay/``: the connection to one of several control planes, Envoy's xDS through it, and the last answers on disk.
- ``subscriptions``: the agent's own xDS stream: name table, proxy settings, reports of health
  and of what warms at Envoy.
- ``bootstrap/``: the file that Envoy starts with.
- ``envoy/``: Envoy's life as a state machine, and what it does: started, watched, taken over from, drained.
- ``handover``: what the agent hands to its next version: listening sockets, and Envoy.
- ``dns/``: names of the mesh answered, all others forwarded.
- ``health/``: probes of the application.
- ``registration/``: the service in the local Consul agent.
- ``status/``: the HTTP server of readiness, merged metrics and rewritten probes.
- ``interception/``: the rules of iptables or nftables by which traffic goes through Envoy.
- ``memory``: gives it back; ``service_manager``: tells systemd.
- ``agent_bootstrap``: what the settings and the control plane make of Envoy's bootstrap.
- ``node_message``: Envoy's node, encoded; ``wire``: small messages read.
- ``agent``: puts them together.

It knows nothing of the control plane's World. It stays light: no message of Envoy's API is imported
before it is needed.
May import: ``identity``, ``istio``, ``net``, ``model``, ``base``.
"""
