"""The parts of an InferenceService, each made of the checked inputs. No I/O.

May import `deploy_inputs`, `names` and what `kserve` may import.
"""
