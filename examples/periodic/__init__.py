"""`python -m examples.periodic`: two beats with one run a tick, and one run after a stop of the fleet."""
