"""The plans of this code location, one module per domain. Relations, caches, streams and training all import them."""
