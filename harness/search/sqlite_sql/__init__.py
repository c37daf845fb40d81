"""The SQL of the SQLite search index."""
