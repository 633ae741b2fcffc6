"""Definitions as they are read: what is wrong in YAML is refused with file and line, and no plan is imported for it."""
