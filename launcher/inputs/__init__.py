"""Reads and checks the inputs of a component: typed values, storage URIs, placement, environment.

Also reads the settings of the KFP task. What cannot work raises InputError, whose message names the
value, the limit and the way out. May import the root modules only. No I/O.
"""
