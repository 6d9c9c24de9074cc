"""Pipeline packages, for the author's Python and for the command."""
