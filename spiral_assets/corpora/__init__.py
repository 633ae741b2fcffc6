"""Relations made on this machine for the demo, the documents and the benchmarks: images, texts and videos."""
