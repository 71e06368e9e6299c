"""Every start of a node x every target x every effect as a crash point. See tests/certify/README.md."""
