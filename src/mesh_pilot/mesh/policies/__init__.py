"""Policies for connections and requests: who may connect how, what is limited, logged, measured and extended."""
