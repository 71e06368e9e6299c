"""What a system does to an installer, how it is played on a node, and what has to come of it."""
