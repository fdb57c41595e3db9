"""`python -m examples.demo`: a periodic task on a small fleet, first without the lock, then with it."""
