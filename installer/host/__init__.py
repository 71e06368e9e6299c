"""Every effect on the host, one door each. `ports` says what each door promises."""
