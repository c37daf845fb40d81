"""Real error messages of providers, and what each of them means for the run."""

from __future__ import annotations

import pytest

from harness.operation.provider_errors import (
    is_overflow_message,
    is_retryable_message,
    refused_tokens,
)

OVERFLOW = {
    "openai-chat": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in "
        "150012 tokens. Please reduce the length of the messages."
    ),
    "openai-code": "Error code: 400 - {'error': {'code': 'context_length_exceeded'}}",
    "openai-responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    "openai-minute": (
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
        "Requested 52348. The input or output tokens must be reduced in order to run successfully."
    ),
    "anthropic-prompt": "prompt is too long: 213462 tokens > 200000 maximum",
    "anthropic-output": (
        "input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000, decrease input "
        "length or `max_tokens` and try again"
    ),
    "anthropic-bytes": "request_too_large: Request exceeds the maximum size",
    "google": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."
    ),
    "vertex": (
        "Unable to submit request because the input token count is 40000 but model only supports up "
        "to 32768. Reduce the input token count and try again."
    ),
    "llama.cpp": (
        "request (5012 tokens) exceeds the available context size (4096 tokens), try increasing it"
    ),
    "llama.cpp-old": (
        "the request exceeds the available context size. try increasing the context size or enable "
        "context shift"
    ),
    "llama.cpp-mid": "Context size has been exceeded.",
    "vllm": (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 "
        "in the messages, 1000 in the completion). Please reduce the length of the messages or "
        "completion."
    ),
    "vllm-decoder": (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure "
        "that `max_model_len` is no smaller than the number of text tokens."
    ),
    "vllm-output": (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context "
        "length is 8192 tokens and your request has 612 input tokens (8192 > 8192 - 612)."
    ),
    "sglang": "The input (9001 tokens) is longer than the model's context length (8192 tokens).",
    "ollama": "prompt too long; exceeded max context length by 123 tokens",
    "ollama-input": "the input length exceeds the context length",
    "groq": "Please reduce the length of the messages or completion.",
    "groq-minute": (
        "Request too large for model `llama-3.1-8b-instant` in organization `org_x` service tier "
        "`on_demand` on tokens per minute (TPM): Limit 6000, Requested 7200, please reduce your "
        "message size and try again."
    ),
    "mistral": (
        "Prompt contains 40960 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length"
    ),
    "bedrock": "ValidationException: Input is too long for requested model.",
    "bedrock-tokens": "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
    "openrouter": (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 140213 "
        "tokens (132021 of text input, 8192 in the output). Please reduce the length of either one."
    ),
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "lmstudio": (
        "The number of tokens to keep from the initial prompt is greater than the context length."
    ),
    "tgi": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 "
        "`inputs` tokens and 100 `max_new_tokens`"
    ),
    "fireworks": "The prompt is too long: 140000, model maximum context length: 131071",
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 10021 while limit "
        "is 8192"
    ),
    "copilot": "prompt token count of 70123 exceeds the limit of 64000",
    "moonshot": "Your request exceeded model token limit: 262144 (requested: 291351)",
    "minimax": "invalid params, context window exceeds limit",
    "z.ai": "model_context_window_exceeded",
    "z.ai-length": "Prompt exceeds max length",
    "dashscope": "Range of input length should be [1, 129024]",
    "cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."
    ),
    "litellm": (
        "litellm.ContextWindowExceededError: Requested token count exceeds the model's maximum "
        "context length of 131,072 tokens."
    ),
}

RETRYABLE = {
    "openai-429": (
        "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
        "Used 29000, Requested 4000. Please try again in 6s."
    ),
    "openai-500": (
        "The server had an error processing your request. Sorry about that! You can retry your "
        "request, or contact us through our help center if you keep seeing this error."
    ),
    "openai-stream": (
        "An error occurred while processing your request. You can retry your request, or contact us."
    ),
    "openai-503": "The engine is currently overloaded, please try again later",
    "openai-code": "Error code: 502 - bad gateway",
    "anthropic-529": '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    "anthropic-500": "api_error: Internal server error",
    "anthropic-429": (
        "This request would exceed the rate limit for your organization of 40,000 input tokens per "
        "minute."
    ),
    "google-503": "The model is overloaded. Please try again later.",
    "google-unavailable": "503 UNAVAILABLE. This model is currently experiencing high demand.",
    "google-429": "Resource has been exhausted (e.g. check quota).",
    "google-quota-wait": (
        "You exceeded your current quota, please check your plan and billing details. Quota exceeded "
        "for metric: generate_content_free_tier_requests, limit: 10. Please retry in 34.07s. "
        "RESOURCE_EXHAUSTED"
    ),
    "google-deadline": "504 DEADLINE_EXCEEDED. The request timed out.",
    "bedrock": "ThrottlingException: Too many tokens, please wait before trying again.",
    "bedrock-stream": "ServiceUnavailableException: Bedrock is unable to process your request.",
    "bedrock-ready": "ModelNotReadyException: The model is not ready for inference.",
    "llama.cpp": '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
    "vllm": "status code: 503 Service Unavailable",
    "ollama": "server busy, please try again.  maximum pending requests exceeded; queue is full",
    "groq": "Rate limit reached for model `llama3-70b-8192`. Please try again in 7.66s.",
    "groq-capacity": "llama-3.3-70b is currently over capacity. Please try again and back off.",
    "mistral": "429 Requests rate limit exceeded",
    "mistral-capacity": "Service tier capacity exceeded for this model. HTTP status: 429",
    "openrouter": "Provider returned error",
    "openrouter-none": "No instances available for this model",
    "xai": "503 Service temporarily unavailable. The model is at capacity.",
    "cloudflare": "HTTP 524: a timeout occurred",
    "envoy": "upstream connect error or disconnect/reset before headers. reset reason: overflow",
    "openai-sdk": "Connection error.",
    "httpx-timeout": "Request timed out.",
    "httpx-cut": (
        "peer closed connection without sending complete message body (incomplete chunked read)"
    ),
    "httpx-gone": "Server disconnected without sending a response.",
    "httpx-connect": "All connection attempts failed",
    "os-reset": "[Errno 104] Connection reset by peer",
    "os-dns": "[Errno -2] Name or service not known",
}

TERMINAL = {
    "openai-key": "Incorrect API key provided: sk-x. You can find your API key in your account.",
    "openai-quota": (
        "You exceeded your current quota, please check your plan and billing details. "
        "insufficient_quota"
    ),
    "openai-quota-429": "Error code: 429 - {'error': {'code': 'insufficient_quota'}}",
    "openai-model": "The model `gpt-9` does not exist or you do not have access to it.",
    "openai-param": "Unsupported value: 'temperature' does not support 0.5 with this model.",
    "openai-order": (
        "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
        "'tool_calls'."
    ),
    "openai-500-words": "Invalid 'max_tokens': must be between 1 and 500.",
    "anthropic-credit": (
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
    ),
    "anthropic-order": (
        "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "toolu_1. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message."
    ),
    "anthropic-empty": "messages: text content blocks must be non-empty",
    "anthropic-auth": "authentication_error: invalid x-api-key",
    "google-key": "API key not valid. Please pass a valid API key.",
    "google-arg": "400 INVALID_ARGUMENT. Function call is missing a thought_signature.",
    "deepseek": "Insufficient Balance",
    "openrouter-credit": "This request requires more credits, or fewer max_tokens.",
    "xai-key": "Incorrect API key provided",
    "ollama-model": "model 'llama9' not found",
    "ollama-tools": "registry.ollama.ai/library/gemma:2b does not support tools",
    "bedrock": "AccessDeniedException: You don't have access to the model with the specified ID.",
    "mistral": "Unauthorized",
    "content": "Your request was rejected as a result of our safety system.",
}


@pytest.mark.parametrize("text", OVERFLOW.values(), ids=OVERFLOW.keys())
def test_a_context_that_did_not_fit_is_recognised(text: str) -> None:
    assert is_overflow_message(text)


@pytest.mark.parametrize("text", RETRYABLE.values(), ids=RETRYABLE.keys())
def test_a_passing_condition_is_worth_another_attempt(text: str) -> None:
    assert not is_overflow_message(text)
    assert is_retryable_message(text)


@pytest.mark.parametrize("text", TERMINAL.values(), ids=TERMINAL.keys())
def test_a_refusal_is_neither(text: str) -> None:
    assert not is_overflow_message(text)
    assert not is_retryable_message(text)


def test_case_does_not_matter() -> None:
    assert is_overflow_message("PROMPT IS TOO LONG: 9 TOKENS > 8 MAXIMUM")
    assert is_retryable_message("OVERLOADED")


def test_an_empty_message_means_nothing() -> None:
    assert not is_overflow_message("")
    assert not is_retryable_message("")


def test_a_message_of_a_megabyte_is_read_in_linear_time() -> None:
    # Providers echo whole requests in their errors; a pattern that backtracks would stop the loop.
    text = "exceeds input token count would exceed exceeded " * 22_000
    assert not is_overflow_message(text)
    assert not is_retryable_message(text)


@pytest.mark.parametrize(
    ("text", "window", "tokens"),
    [
        ("request (5776 tokens) exceeds the available context size (2048 tokens)", 2_048, 5_776),
        ("prompt is too long: 213462 tokens > 200000 maximum", 200_000, 213_462),
        (
            "This model's maximum context length is 2,048 tokens. You requested 4,000 tokens",
            2_048,
            4_000,
        ),
        (
            "input token count (3120) exceeds the maximum number of tokens allowed (2048).",
            2_048,
            3_120,
        ),
        ("prompt is too long", 2_048, None),
        ("too long (request 1796044713736, model-9000)", 2_048, None),
    ],
)
def test_the_size_that_a_refusal_names(text: str, window: int, tokens: int | None) -> None:
    assert refused_tokens(text, window) == tokens
