"""Waits for a job as kubeflow's Trainer SDK does. Runs where that package is installed, alone."""

import sys
import time

from kubeflow.trainer import KubernetesBackendConfig, TrainerClient

kubeconfig, namespace, name, factor = sys.argv[1:]
sleep = time.sleep
time.sleep = lambda seconds: sleep(seconds / float(factor))
client = TrainerClient(KubernetesBackendConfig(config_file=kubeconfig, namespace=namespace))
print("waiting", flush=True)
client.wait_for_job_status(name, timeout=7200)
