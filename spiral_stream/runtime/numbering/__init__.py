"""Which samples batch `n` of an epoch has, for any `n`.

Start at: `numbering`.
May not know: how a batch is filled.
"""
