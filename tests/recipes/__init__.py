"""Recipes of the documentation, as they stand there, run by the tests."""
