"""Training streams that are planned, explained and replayable."""
