"""Registries of models: what is registered of a model, and how each registry keeps it.

May import `inputs`, `runtime`, `kubernetes` and the root modules.
"""
