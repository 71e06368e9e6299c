"""What a disk does to us: a power loss, errors, somebody who swaps what is on it."""
