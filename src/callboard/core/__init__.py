"""The protocol without I/O: bytes, messages and time come in as arguments; bytes and decisions go out."""
