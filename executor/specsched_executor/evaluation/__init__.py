"""Measuring a drafter by real generation: `specsched eval drafter`."""
