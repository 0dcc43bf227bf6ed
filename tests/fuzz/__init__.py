"""The endpoint under any input: ``python -m tests.fuzz``. See :mod:`.__main__`."""
