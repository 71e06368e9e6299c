"""Plan cases: a host as data, what is asked of it, and the plan that must come out."""
