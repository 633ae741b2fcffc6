"""From opening to closing: the loop, its queue, where it stands, and how it goes on elsewhere.

Start at: `opened_plan`, then `loop`.
May not know: fields.
"""
