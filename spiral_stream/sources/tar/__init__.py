"""Tars of samples, as the webdataset library writes them.

Start at: `webdataset`.
May not know: other formats.
"""
