"""The operators in torch: what runs on a CPU, and what device code is held to."""
