"""`python -m examples.django`: a Django project whose views and tasks share one lock."""
