"""The HTTP service: JSON under /v1, event streams, problem documents, OpenAPI."""
