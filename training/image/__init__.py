"""Image classification: the training loop, the models and their export.

May import all but language.
"""
