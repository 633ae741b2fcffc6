"""Files of token ids, one row per document.

Start at: `source`.
May not know: tokenizers.
"""
