"""A revision beside the one that serves: made, addressed, promoted, taken back.

In Knative mode it is the newest Revision, with a share of the traffic; in Standard mode an entry of
`spec.canary`, which is asked through a Service of its own. `spec` and `state` are pure, `addresses`
too. May import what is beside this package, `inputs` and `kubernetes`.
"""
