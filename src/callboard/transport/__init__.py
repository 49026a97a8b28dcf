"""How messages travel: HTTP, stdio, and in memory."""
