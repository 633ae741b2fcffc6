"""`make demo`: images drawn on this machine, taken through the whole system."""
