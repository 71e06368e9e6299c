"""Installs, keeps and removes CRI-Resource-Manager on a Kubernetes node."""
