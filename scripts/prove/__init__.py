"""Measures the schedule against every static setting on this machine, in pieces: `make prove`."""
