"""Workers: processes that share the gRPC ports, so that a control plane uses every core.

The first worker reads the sources, decides which events take effect, and serves proxies as any other. It passes those
events on: to the *fork server*, a process that holds a World and nothing else, and to each worker that was forked from
it. A new worker so begins with the World of that time, in memory that it shares with the fork server.

- ``frames``: the messages between the processes, as bytes.
- ``link``: one end of a socket between two of them.
- ``fork_server``: the process from which workers are forked.
- ``worker``: a worker other than the first.
- ``slot``: what a worker has of the first one.
- ``supervisor``: the first worker's side: starts the others, feeds them, replaces those that end, asks them.
- ``effects``: what revisions came to at the proxies of all workers.

What a control plane is, nothing here knows: settings pass through, and who runs a worker is given.
"""
