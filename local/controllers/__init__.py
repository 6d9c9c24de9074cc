"""What acts on the local cluster's objects as a real cluster's controllers do."""
