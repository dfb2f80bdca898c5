"""The built-in CA: where its files are (``store``, ``folder``), what they mean (``material``), what it signs
(``certificates``), how its root is replaced (``rotation``), and the CA of a running control plane (``authority``)."""
