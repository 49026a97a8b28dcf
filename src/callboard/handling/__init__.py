"""A server written as one class with callbacks."""
