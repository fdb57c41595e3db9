"""`python -m examples.leaderboard`: one Lua script changes several keys, under the lock."""
