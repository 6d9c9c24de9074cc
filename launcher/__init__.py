"""What runs in a step's pod: it drives a job on Kubernetes, follows it and reports."""
