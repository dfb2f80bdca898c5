"""The traffic of the mesh: who calls whom and how well, as the proxies themselves count it.

Load reports of Envoys and reports of agents become one table of edges, each a proxy's use of one of its clusters. The
last ten minutes are kept by slots of ten seconds; what is older by workload, a month in all. All of it is pure, given
times and reports; only the server of the streams does I/O, and only the keeper of the memory writes to the disk.

May import: ``xds``, ``identity``, ``mesh``, ``net``, ``model``, ``base``.
"""
