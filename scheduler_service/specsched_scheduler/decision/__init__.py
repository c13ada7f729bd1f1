"""The decision: how many draft tokens of a step are verified. Pure; see `decide`."""
