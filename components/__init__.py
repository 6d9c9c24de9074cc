"""Pipeline components: thin definitions over `kfp_pytorch.launcher`."""
