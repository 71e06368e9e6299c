"""What people give: settings, configs, payload. Read and validated; every fault names its place."""
