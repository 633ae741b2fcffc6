"""Which rows of a relation survive, what stands beside them, and the engine for the rest."""
