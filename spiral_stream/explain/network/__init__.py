"""What a stream asks of its stores, and how fast it can be over a network.

Start at: `network`.
May not know: other sections.
"""
