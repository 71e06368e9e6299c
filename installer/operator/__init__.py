"""The commands for a whole cluster, with a person's kubeconfig: see every node, steer a rollout, uninstall.
They keep no memory: each command decides from what it finds.
"""
