"""CPUs and CPU weight of containers that run already: what the proxy took is given back."""
