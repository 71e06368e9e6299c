"""What about this host cannot or should not be served: a snapshot in, findings out. Pure."""
