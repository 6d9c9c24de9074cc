"""Data sets and their way to the device: sources, shards, loaders, decoding, augmentation.

May import parallel, storage, arguments and entry.
"""
