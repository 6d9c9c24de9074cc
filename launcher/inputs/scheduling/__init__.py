"""Which scheduler starts a job's pods, on which nodes and devices: `scheduling`, `placement`.

Pure: two inputs become labels, annotations, a PodGroup and changes of the pods. May import what
`inputs` may.
"""
