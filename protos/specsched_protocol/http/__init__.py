"""The HTTP port of a process: health, metrics, and what else it mounts. Plain text, read only."""
