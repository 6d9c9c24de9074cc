"""Creates or adopts a job and waits for its end: watches, logs, limits, evidence.

May import `jobs`, `inputs`, `runtime`, `kubernetes` and the root modules.
"""
