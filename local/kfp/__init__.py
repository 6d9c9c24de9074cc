"""Runs the steps of a pipeline with kfp.local, each as a Pod object of the cluster.

`runner` is the process of a run, `step` the process around one step; the other modules make of a
package what kfp.local runs as a cluster would. May import `client` and `processes`, not the API
server or the controllers.
"""
