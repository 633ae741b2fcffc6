"""Formats with columns and statistics: Parquet, Vortex, Hugging Face's folders.

Start at: `parquet`.
May not know: other formats.
"""
