"""`python -m examples.limits`: so many exports for each customer, and so many API calls in a period."""
