"""Runs a step: its entry point, its identity, signals and stopping, its artifacts, what it prints.

May import `kubernetes` and the root modules.
"""
