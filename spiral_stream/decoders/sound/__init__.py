"""Recordings to samples of a waveform, and which part of one.

Start at: `sound`.
May not know: pictures.
"""
