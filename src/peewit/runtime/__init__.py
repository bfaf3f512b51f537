"""Memory, arithmetic, progress, random numbers, devices and threads."""
