"""What people do with a whole cluster, with their own kubeconfig: see every node, take everything away. It
keeps no memory: each command decides from what it finds.
"""
