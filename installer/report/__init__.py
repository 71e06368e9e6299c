"""Turns what the core hands over (events, plans, errors) into text for people or JSON for machines.

The only package besides the CLI that writes to a terminal. Decides nothing and reads no host: everything
that it shows is in the value that it gets.
"""
