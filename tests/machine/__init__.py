"""A real machine, under qemu's emulation: a Debian with a kernel, a disk, a clock and a power switch."""
