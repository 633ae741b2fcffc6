"""Looking at a stream: what it is, what it has measured, and what its samples look like."""
