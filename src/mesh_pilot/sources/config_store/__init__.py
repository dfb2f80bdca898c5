"""Stores of configuration that can be written: a folder, Consul's KV store, a Kubernetes.

    store = ConfigFolder(Path("/etc/mesh/config"))
    stored = await store.read(key)
    await store.write(key, {**stored.document, "spec": spec}, instead_of=stored)    # raises ConfigConflict

A store writes what a source of this control plane reads; the way back is that source. Every write names what it takes
the place of, so that no change of somebody else is lost. Nothing here knows the World, or who may write.
"""
