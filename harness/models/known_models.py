"""What is known of providers and models, so that a configuration need only name them (design §8).

No price list has the largest output of a model, so it is kept here by the beginning of its name.
What is not here comes from the price list, and at last from the configuration, which always wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.models.pydantic_ai_client import Api


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider's wire, its address where that is not the wire's own, and its key's variable.

    `listed_as` is its name in the price list, where that is another.
    """

    api: Api
    base_url: str | None = None
    api_key_env: str | None = None
    listed_as: str | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Tokens of context and output; whether it can think first and look at images."""

    context_window: int
    max_tokens: int
    reasoning: bool = False
    images: bool = True


PROVIDERS = {
    "openai": KnownProvider("openai-responses", None, "OPENAI_API_KEY"),
    "anthropic": KnownProvider("anthropic", None, "ANTHROPIC_API_KEY"),
    "google": KnownProvider("google", None, "GOOGLE_API_KEY"),
    "cerebras": KnownProvider("openai-chat", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": KnownProvider("openai-chat", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": KnownProvider(
        "openai-chat", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"
    ),
    "groq": KnownProvider("openai-chat", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": KnownProvider("openai-chat", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshot": KnownProvider(
        "openai-chat", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", listed_as="moonshotai"
    ),
    "ollama": KnownProvider("openai-chat", "http://127.0.0.1:11434/v1"),
    "openrouter": KnownProvider(
        "openai-chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"
    ),
    "together": KnownProvider("openai-chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "xai": KnownProvider("openai-chat", "https://api.x.ai/v1", "XAI_API_KEY", listed_as="x-ai"),
}

# The longest beginning that fits decides.
_MODELS = {
    ("anthropic", "claude-"): KnownModel(200_000, 64_000, reasoning=True),
    ("anthropic", "claude-3-"): KnownModel(200_000, 4_096),
    ("anthropic", "claude-3-5-"): KnownModel(200_000, 8_192),
    ("anthropic", "claude-3-7-"): KnownModel(200_000, 64_000, reasoning=True),
    ("anthropic", "claude-opus-4-0"): KnownModel(200_000, 32_000, reasoning=True),
    ("anthropic", "claude-opus-4-1"): KnownModel(200_000, 32_000, reasoning=True),
    ("anthropic", "claude-opus-4-2"): KnownModel(200_000, 32_000, reasoning=True),
    ("openai", "gpt-4o"): KnownModel(128_000, 16_384),
    ("openai", "gpt-4.1"): KnownModel(1_047_576, 32_768),
    ("openai", "gpt-4-turbo"): KnownModel(128_000, 4_096),
    ("openai", "gpt-5"): KnownModel(400_000, 128_000, reasoning=True),
    ("openai", "gpt-5-chat"): KnownModel(128_000, 16_384),
    ("openai", "gpt-6"): KnownModel(400_000, 128_000, reasoning=True),
    ("openai", "o1"): KnownModel(200_000, 100_000, reasoning=True),
    ("openai", "o3"): KnownModel(200_000, 100_000, reasoning=True),
    ("openai", "o4-mini"): KnownModel(200_000, 100_000, reasoning=True),
    ("google", "gemini-1.5"): KnownModel(1_048_576, 8_192),
    ("google", "gemini-2.0"): KnownModel(1_048_576, 8_192),
    ("google", "gemini-2.5"): KnownModel(1_048_576, 65_536, reasoning=True),
    ("google", "gemini-3"): KnownModel(1_048_576, 65_536, reasoning=True),
    ("deepseek", "deepseek-chat"): KnownModel(128_000, 8_192, images=False),
    ("deepseek", "deepseek-reasoner"): KnownModel(128_000, 64_000, reasoning=True, images=False),
    ("xai", "grok-3"): KnownModel(131_072, 16_384, images=False),
    ("xai", "grok-4"): KnownModel(256_000, 64_000, reasoning=True),
    ("mistral", "mistral-"): KnownModel(128_000, 16_384),
}


def known_model(provider: str, model_id: str) -> KnownModel | None:
    """What is known of a model by its name, or None."""
    fitting = [
        (len(start), known)
        for (owner, start), known in _MODELS.items()
        if owner == provider and model_id.startswith(start)
    ]
    return max(fitting, key=lambda found: found[0])[1] if fitting else None


def listed_context_window(provider: str, model_id: str) -> int | None:
    """The context window by the price list, or None. Imports the list, which takes a moment."""
    from genai_prices import Usage, calc_price

    known = PROVIDERS.get(provider)
    name = (known.listed_as if known is not None else None) or provider
    try:
        return calc_price(Usage(), model_id, provider_id=name).model.context_window
    except (LookupError, ValueError):
        return None
