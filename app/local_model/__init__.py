"""A small language model behind a real HTTP server on this machine, for the demo and the tests."""

from app.local_model.child import LocalModelFailed, local_model_server
from app.local_model.server import MODEL_ID, LocalModelMissing

__all__ = ["MODEL_ID", "LocalModelFailed", "LocalModelMissing", "local_model_server"]
