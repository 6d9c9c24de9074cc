"""KServe in Standard mode: an InferenceService becomes a Deployment, a Service and a URL.

`runtimes`, `storage` and `predictor` make the objects, `ingress` gives the URL, `status` is the
pure function to the status, and `controller` reconciles. `storage_initializer` is a program of
the predictor's pods. It may import `controllers.kubernetes` and `local.apiserver`.
"""
