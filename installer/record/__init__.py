"""What is ours on the host: `schema` says what the record holds, `store` keeps it during a run."""
