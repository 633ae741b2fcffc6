"""The `spiral` command, and the programs that it writes.

Start at: `cli`.
May not know: inner rooms, where a door of the library does it.
"""
