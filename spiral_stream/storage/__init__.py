"""Bytes by URI: object stores and local files behind one face, and the options that reach them.

Start at: `store`, then `open`.
May not know: formats.
"""
