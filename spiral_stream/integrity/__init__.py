"""Derived files that say when they are damaged: seals, sums of blocks, guarded mappings, drafts of live writers."""
