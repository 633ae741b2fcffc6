"""Which rows of a relation survive, which rows of joined relations match them, and the engine for the rest."""
