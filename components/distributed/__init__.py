"""`distribute`: makes a distributed job of a component, and the function of its step.

May import what a component may.
"""
