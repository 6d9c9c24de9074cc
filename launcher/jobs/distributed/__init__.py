"""A component's function in every process of a job: the files of its pods, and what rank 0 returns.

May import what `jobs` may, and no kind. `program/` runs in the pods and is imported nowhere.
"""
