"""What the launcher costs: requests, latencies, size, start-up, beside the peers."""
