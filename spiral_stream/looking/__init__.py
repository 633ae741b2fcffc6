"""What a stream and a relation show of themselves: samples, contact sheets, tables.

Start at: `inspect`.
May not know: how batches are made: it asks the stream.
"""
