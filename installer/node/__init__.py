"""One node: how a host comes to be as desired, and back. `reconcile` tells the story."""
