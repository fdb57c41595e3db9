"""`python -m examples.demo`: a periodic task on a small fleet, without the lock and then with it."""
