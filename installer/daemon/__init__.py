"""The long-running watcher of the DaemonSet: looks, decides, lets a child converge, waits.

`policy` decides (pure), `poller` looks, `loop` waits and starts children, `runtime_state` keeps what has to
outlive the process, `rescue` is what a child does when the proxy is dead.
"""
