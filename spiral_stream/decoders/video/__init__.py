"""Videos to frames: which frames, which packets they need, and the codec that gives them.

Start at: `frame_selection`, then `video`.
May not know: plans, caches.
"""
