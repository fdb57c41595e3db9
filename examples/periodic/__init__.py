"""`python -m examples.periodic`: two beats and one run a tick; a stopped fleet and one run to catch up."""
