"""What runs in the pods of a distributed component, beside the component's function.

It lies in the ConfigMap of the job's files as the package `kfp_pytorch_distributed`. It needs
Python 3.10, torch and kfp, and nothing of this project.
"""
