"""What runs in the predictor's pod."""
