"""Files that appear whole or not at all, and tell if they are damaged; locks between processes.

Start at: `publish`, then `seal`.
May not know: what the files hold.
"""
