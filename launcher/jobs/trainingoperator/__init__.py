"""What all kinds of the Training Operator v1 share: run policy, conditions, roles of pods.

May import what `jobs` may and `jobs.pods`, and no kind.
"""
