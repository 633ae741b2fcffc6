"""One file a system, each with `prepare(data)` and `batches(data, **options)`; see `benchmarks/README.md`."""
