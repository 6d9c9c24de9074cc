"""A cluster of one node on this machine, for local runs.

`lifecycle` starts and stops it, `cluster` is its process, `client` reads its API. Of launcher/ only
`constants` may be imported. Imports go down: cluster, controllers, then apiserver and kfp,
then processes.
"""
