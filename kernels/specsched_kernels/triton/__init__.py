"""Device code in Triton, one module per operator, imported only when a device needs it."""
