"""What acts on the local cluster's objects as a real cluster's controllers do.

`kubernetes` holds Kubernetes' own controllers except the kubelet; `kubelet` runs pods as processes;
`pytorchjob` is the Training Operator and `kserve` is KServe in Standard mode. The last three import
`kubernetes`, and not one another. All of them read and write objects
through `local.apiserver` and take nothing but constants from the launcher.
"""
