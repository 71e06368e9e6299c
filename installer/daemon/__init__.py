"""The long-running process of the DaemonSet: it looks, decides, lets a pass converge, and waits.

`policy` decides (pure), `poller` looks, `assessor` takes the picture, `loop` waits and starts children,
`runtime_state` keeps what has to outlive the process.
"""
