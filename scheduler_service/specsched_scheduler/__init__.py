"""The scheduler: decides, every step, how many draft tokens are verified. Never imports torch."""
