"""API servers, as the extension's controller and the commands for a whole cluster ask them: with the client
that Kubernetes keeps, which is an extra. No node has it: there, `installer.host.kubeapi` asks.
"""
