"""What is to be done, as frozen nodes that are checked when they are made.

Start at: `nodes`, then `tree`.
May not know: files, threads, engines: a plan cannot run.
"""
