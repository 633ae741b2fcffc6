"""Images and masks to pixels, a region of them where the codec allows it.

Start at: `image`.
May not know: videos.
"""
