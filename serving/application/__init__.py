"""KServe's own application, which answers what is no inference, with our state and errors.

May import the rest of `serving` but for the server, and kserve.
"""
