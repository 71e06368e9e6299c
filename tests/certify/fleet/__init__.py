"""The certificate of a fleet."""
