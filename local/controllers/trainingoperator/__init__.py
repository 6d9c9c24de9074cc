"""What the Training Operator does alike for each of its kinds: run policy, conditions, labels.

`job` is one reconciliation of a job, and ends in a `Plan`; `plan` carries it out. It may import
`controllers.kubernetes` and `local.apiserver`.
"""
