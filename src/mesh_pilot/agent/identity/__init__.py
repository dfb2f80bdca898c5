"""The workload's key, its certificate and the mesh's roots, from the first proof to each renewal."""
