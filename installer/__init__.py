"""Installs CRI-Resource-Manager on a Kubernetes node, keeps it there, and removes it."""

__version__ = "0.1.0"
