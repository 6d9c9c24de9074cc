"""What a run is asked to do: its arguments as checked, frozen values.

May import `entry` and errors, and no torch: a wrong argument is reported before that is imported.
"""
