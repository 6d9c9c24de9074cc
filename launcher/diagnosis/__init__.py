"""Explains why a job failed: evidence → an ordered list of causes → one message.

May import `waiting.evidence`, `jobs`, the readers of `kubernetes` and the root modules. No I/O.
"""
