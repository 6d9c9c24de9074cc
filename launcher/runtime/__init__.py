"""Runs a step: its entry point, its identity, signals and stopping, what it prints.

May import `kubernetes` and the root modules.
"""
