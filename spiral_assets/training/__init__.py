"""The training process that Dagster launches, and that runs alone as well."""
