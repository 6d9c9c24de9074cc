"""What is measured while a model is trained, and where it is reported to.

May import faults, parallel, storage, arguments and entry.
"""
