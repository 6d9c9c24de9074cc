"""InferenceServices: manifest, rollout state, deployment, evidence of a failure, predictions.

May import `inputs`, `runtime`, `kubernetes` and the root modules.
"""
