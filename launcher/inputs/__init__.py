"""Reads and checks the inputs of a component: typed values, storage URIs, placement, environment.

Also reads the settings of the KFP task. May import the root modules only. No I/O.
"""
