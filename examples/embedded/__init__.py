"""Starts a Valkey server, workers and beats for the examples, and stops them at the end."""
