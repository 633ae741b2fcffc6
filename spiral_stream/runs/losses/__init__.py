"""What stands out of the values that a run logged: samples, and steps; who carries it, and how to go on without.

Start at: `outliers`, then `spikes`.
May not know: how records are written; it reads the table of a run.
"""
