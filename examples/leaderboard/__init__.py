"""`python -m examples.leaderboard`: several keys change together, by one script, called under the lock."""
