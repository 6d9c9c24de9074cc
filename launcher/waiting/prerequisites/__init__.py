"""What a job has on the cluster beside itself: the ConfigMap of its code, its gang, its queue.

May import what `waiting` may.
"""
