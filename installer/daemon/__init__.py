"""The long-running watcher of the DaemonSet: looks, decides, lets a child converge, waits.

`policy` decides (pure), `snapshot` looks, `loop` waits and starts children, `runtime_state` remember what has
to outlive the process, `rescue` is what a child does when the proxy is dead.
"""
