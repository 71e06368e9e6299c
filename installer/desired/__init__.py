"""The desired state: a pure function of settings, configs, payload and what kubelet's base is."""
