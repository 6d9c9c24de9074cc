"""Language models: the training loop, the transformer under every plan, and its export.

May import all others, of image only what writes an export.
"""
