"""The messages of the protocol as data: generated types, the table of versions, and the one decoder of bytes. No I/O."""
