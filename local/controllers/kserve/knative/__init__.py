"""An InferenceService in Knative mode: its Revisions, their shares of the traffic, its status.

May import what `controllers` may, and the modules of both modes beside this package.
"""
