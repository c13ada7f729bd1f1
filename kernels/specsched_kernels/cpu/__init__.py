"""Device code for CPUs, compiled by numba on first use and cached."""
