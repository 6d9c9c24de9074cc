"""What a request says and what an answer means, in each protocol: bytes in, bytes out, no I/O.

May import what is beside this package, but for the clients.
"""
