"""Every start of a node x every target x every effect of the plan as a crash point. See docs/certificates.md."""
