"""Requests to a model server, in each of its protocols, and what becomes of them.

A module a protocol builds requests and reads answers, without I/O; `http` sends; `sending` retries
and sends several at once; `comparing` and `latency` judge. May import `inputs`, `kubernetes` and
what is beside this package.
"""
