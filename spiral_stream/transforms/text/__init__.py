"""Text and conversations to token ids.

Start at: `tokenize`, then `encoder`.
May not know: images.
"""
