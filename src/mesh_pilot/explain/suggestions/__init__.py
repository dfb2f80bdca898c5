"""Suggestions: objects made of what the proxies of a mesh really did, for people to look at. Nothing is applied.

- ``text``: suggestions as YAML with comments, and as JSON.
- ``costs``: the size of what a proxy is sent, before and after.
- ``sidecars``: a Sidecar for each workload that imports what it called. ``policies``: an AuthorizationPolicy for each
  workload that admits who called it.
- ``needs``: the hosts that a workload must import so that its calls keep working.
- ``workloads``: workloads by the labels that select them, with their proxies.
- ``observed``: the traffic that all this is made of, and a suggestion.
"""
