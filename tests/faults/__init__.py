"""Sangho played against a server with several processes, while things break, and then counted.

Run ``python -m tests.faults --help``, or ``tox run -e faults``.
"""
