"""How plan requests leave the executor and decisions come back."""
