"""Writing a server: components, the registry that holds them, and the dispatch that serves them."""
