"""A Kubernetes API over objects in memory, for one process on this machine.

`http` answers requests, `store` keeps the objects and their watches, `validation` refuses or
defaults objects as Kubernetes does; they may import in this order, and all of them `registry` (the
resources), `objects` and `errors`. Nothing here imports the controllers.
"""
