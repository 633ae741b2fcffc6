"""Which part of a run this process is: parameters, ranks, nodes, meshes.

Start at: `bindings`.
May not know: rows.
"""
