"""The training process. Dagster launches it; it also runs alone."""
