"""Envoy's reasons to refuse a message: a client, listener or route table with one of them is refused as a whole.

``check`` walks a message. ``declared`` has the constraints that Envoy's API declares for its fields; ``listeners``,
``routes``, ``clusters``, ``extensions``, ``filters`` and ``formats`` those that are only in Envoy's code, as seen with
real Envoys; ``pairs`` are rules about two fields, for the tables of these. ``waits`` lists what a message makes Envoy
wait for. What depends on a proxy's files, or on the extensions that its build has, is not judged.
"""
