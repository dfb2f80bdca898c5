"""A Lease as the lock of an election, taken as client-go takes it."""
