"""Schedulers are swapped, killed and stopped under load while an executor serves (`make soak`)."""
