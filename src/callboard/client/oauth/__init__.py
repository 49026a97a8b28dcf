"""OAuth for clients: where to get a token, how, and what to do when it is not enough. Public names: `callboard.oauth`."""
