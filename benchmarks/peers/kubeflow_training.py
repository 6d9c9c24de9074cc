"""Waits for a job as kubeflow-training does. Runs where that package is installed, and alone."""

import sys
import time

from kubeflow.training import TrainingClient

kubeconfig, namespace, name, factor = sys.argv[1:]
sleep = time.sleep
time.sleep = lambda seconds: sleep(seconds / float(factor))
client = TrainingClient(config_file=kubeconfig, namespace=namespace)
print("waiting", flush=True)
client.wait_for_job_conditions(name, wait_timeout=7200)
