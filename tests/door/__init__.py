"""The door: whatever our validation lets in, a real Envoy must take.

Random objects of all kinds are made from the descriptors of the Istio API (`fields`, `values`, `objects`, `patches`).
Those that validation accepts go into a small fixed mesh (`mesh`), and real Envoys say what they refuse (`envoys`). Each
refusal is a finding: it is reduced to the smallest object that causes it (`search`). By hand, for hours:

    python -m tests.door --minutes 60
    python -m tests.door --minutes 10 --kind VirtualService --seed 7
"""
