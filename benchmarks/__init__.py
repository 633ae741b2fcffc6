"""Measured claims: one file a workload, peers beside ours."""
