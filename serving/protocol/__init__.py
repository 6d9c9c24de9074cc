"""What a request says and how it is answered, in each protocol: bytes in, bytes out.

May import the rest of `serving` but for the server, and nothing of kserve but gRPC's messages.
"""
