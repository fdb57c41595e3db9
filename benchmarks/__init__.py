"""Measurements. Each module says at its top what it measures and how to run it."""
