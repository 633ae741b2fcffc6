"""Jobs that run where the compute is: started once, followed by a step, found again after the step is gone.

launcher.py      the interface: submit, attach, state, cancel; what a job is
local.py         a session of its own on this machine; supervisor.py is its first process
ray.py           a job of a Ray cluster
kubernetes.py    a Job of Kubernetes
slurm.py         a batch job of Slurm
fields.py        the field ``launcher`` in YAML and in a run's config
records.py       which job belongs to an asset, a partition and a config: stored before it is submitted
messages.py      what a job says, reported once
following.py     what a step does: submit or attach, follow, cancel
finding.py       a sensor that finds jobs which nobody follows
files.py         files that several processes read and write; waiting.py how long somebody waited
building.py      the program that builds caches elsewhere

Start at: following.py. May not know: what an asset is made of.
"""
