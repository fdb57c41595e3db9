"""`python -m examples.inventory`: stock that is not oversold, not even by a holder that lost its lock."""
