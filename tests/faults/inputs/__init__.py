"""What we are given to read: settings, configs, records, kubelet's files."""
