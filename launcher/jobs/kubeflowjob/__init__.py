"""TFJob, MPIJob, XGBoostJob, JAXJob and PaddleJob of the Training Operator v1.

`frameworks.py` has what tells them apart. May import what `jobs` may, `jobs.pods` and
`jobs.trainingoperator`.
"""
