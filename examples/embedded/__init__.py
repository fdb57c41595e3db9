"""What the demo and the examples run on: a Valkey server, workers and beats that are gone when they end."""
