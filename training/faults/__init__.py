"""What a rank does in a failure: lost peers, hangs, SIGTERM, steps that are not finite.

May import parallel, storage, arguments and entry.
"""
