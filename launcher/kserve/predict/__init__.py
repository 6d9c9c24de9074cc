"""Requests to a model server, in each of its protocols, and what becomes of them.

`protocols` builds requests and reads answers; `clients` sends one; `sending` retries and sends
several at once; `comparing` and `latency` judge. May import `inputs`, `runtime`, `kubernetes` and
what is beside this package.
"""
