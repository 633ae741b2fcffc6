"""The kinds of derived pieces: columns, identities, repeats, rows that pass, values of functions.

Start at: `column`.
May not know: how a piece is kept.
"""
