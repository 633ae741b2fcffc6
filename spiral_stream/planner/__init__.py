"""A plan and a catalog become stages: what to open, select, decode and form.

Start at: `lower`, then `stages`.
May not know: threads and slots; nothing runs yet.
"""
