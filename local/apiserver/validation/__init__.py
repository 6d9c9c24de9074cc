"""What Kubernetes refuses and defaults in an object: names, schemas of CRDs, pods.

`admission` is the entry. Pure functions over objects; may import neither the store nor `http`.
"""
