"""Installs, keeps and removes CRI-Resource-Manager on a Kubernetes node."""

__version__ = "0.1.0"
