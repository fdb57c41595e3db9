"""`python -m examples.inventory`: stock that is never oversold, even if a worker loses its lock."""
