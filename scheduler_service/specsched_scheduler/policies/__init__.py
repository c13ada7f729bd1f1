"""What decides: the built-in policies, their registry and their text form."""
