"""The memory over restarts: the last picture of each source, and the history of revisions, in an SQLite file.

The event loop never waits for it: a separate task writes, in a worker thread (`recorder`).
"""
