"""A real model, served through the sidecar, on one machine: `python -m scripts.demo`."""
