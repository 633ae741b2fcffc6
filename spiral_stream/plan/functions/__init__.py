"""Users' functions in a plan: which code they name, what it does, and which code a saved plan may name.

Start at: `code`.
May not know: what they compute.
"""
