"""What people give: settings, configs, payload, YAML. Read and validated, every fault with its place."""
