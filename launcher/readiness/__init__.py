"""Whether a cluster is ready for a run: checks that only read, and say what mends what they find.

`kfp-pytorch doctor` and the step `preflight` use them. May import `jobs`, `inputs`, `kubernetes`
and the root modules.
"""
