"""What a node's own kubelet unit says, and how our endpoint can come behind it.

Pure: works on the texts that a snapshot has. `analysis` answers everything at once; it decides nothing about
the proxy.
"""
