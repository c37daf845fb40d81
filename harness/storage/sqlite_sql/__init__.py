"""SQL of the SQLite backend: the schema and every statement, by name."""
