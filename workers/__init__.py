"""The procrastinate app, its tasks and the session host."""
