"""Cost: a profile taken at start, kept true by what steps really took."""
