"""KServe in Standard mode: an InferenceService becomes a Deployment, a Service and a URL.

`predictor` makes the objects, `ingress` gives the URL, `controller` reconciles and writes the
status. It may import `controllers.kubernetes` and `local.apiserver`.
"""
