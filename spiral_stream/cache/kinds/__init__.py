"""What a cache of images, clips, chats or tokens stores per row, and how that is read back.

Start at: `kind` (the interface), then `images`.
May not know: where parts lie and who builds them.
"""
