"""The package beside what one would use without it: the same work, in turn, on the same machine."""
