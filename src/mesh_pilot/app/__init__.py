"""The assembly of a control plane: its settings, the sources that they name, and the tree of tasks that runs it.

May import: everything below.
"""
