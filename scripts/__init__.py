"""What developers and CI run."""
