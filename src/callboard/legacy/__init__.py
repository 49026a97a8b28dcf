"""Everything that exists only for 2025 clients. The current protocol works with this folder deleted."""
