"""`python -m examples.search_index`: one rebuild runs, one more is queued, and the index is never stale."""
