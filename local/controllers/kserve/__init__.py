"""KServe: an InferenceService becomes Deployments, Services or Revisions, and addresses.

`runtimes`, `storage` and `predictor` make the objects of a predictor, `canary` those of its
canaries. `standard` and `knative` are the two modes, the latter with `revisions` and `traffic`;
`parts` is what they share. `ingress` and `proxy` are the addresses; `status` and `knative.status`
are the pure functions to the status; `controller` reconciles. `storage_initializer` is a program of
the predictor's pods. It may import `controllers.kubernetes` and `local.apiserver`.
"""
