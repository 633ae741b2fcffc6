"""Crops, flips, colors and other libraries' image steps.

Start at: `image`, then `crop_and_resize`.
May not know: text.
"""
