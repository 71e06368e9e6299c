"""Certificates: what the program can get into is enumerated, by its own code, within bounds that are said."""
