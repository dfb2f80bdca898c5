"""The objects that apply to a workload, by its labels or Gateway."""
