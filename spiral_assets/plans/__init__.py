"""The plans of this code location, a module a task: what its relations, caches, streams and training have in common."""
