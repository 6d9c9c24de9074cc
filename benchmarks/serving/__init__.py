"""The predictor beside a bare FastAPI handler, KServe's own server, and the model alone."""
