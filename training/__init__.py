"""What runs in the training pods."""
