"""Reads a provider's error text: does it mean the context was too large, or that trying again may help (§3.7).

Both functions are heuristics over text that providers change without notice. An adapter that knows
better (an HTTP status, an error code) says so in `AssistantMessage.error_kind`, which comes first.
"""

from __future__ import annotations

import re

# One alternative per wording seen in the field; the comment names who says it.
_OVERFLOW_WORDINGS = (
    r"context[_ ]length[_ ]exceeded",  # OpenAI's code, copied by most compatible servers
    r"model_context_window_exceeded",  # Anthropic's stop reason, z.ai's code
    r"context (?:window|length|size|limit) (?:has been |was |is )?exceeded",  # llama.cpp, us
    r"exceed(?:s|ed)?\b.{0,40}\bcontext (?:window|length|size|limit)",  # OpenAI, Anthropic, Ollama
    r"context window exceeds limit",  # MiniMax
    r"maximum context length (?:is|of) [\d,]+",  # OpenAI, vLLM, OpenRouter, DeepSeek, LiteLLM
    r"model maximum context length: ?\d+",  # Fireworks
    r"prompt (?:is )?too long",  # Anthropic, Ollama, Bedrock
    r"request_too_large|request exceeds the maximum size",  # Anthropic: bytes, not tokens
    r"input is too long",  # Bedrock
    r"input tokens exceeded|input tokens exceeds maximum",  # Bedrock
    r"input token count.{0,40}exceeds the maximum",  # Google
    r"input token count is \d+ but model only supports",  # Vertex
    r"maximum prompt length is \d+",  # xAI
    r"prompt exceeds max length",  # z.ai
    r"prompt token count of \d+ exceeds the limit",  # GitHub Copilot
    r"reduce the length of the (?:messages|prompt|input)",  # Groq, vLLM, Cerebras
    r"too large for model with \d+ maximum context length",  # Mistral
    r"longer than the (?:maximum model length|model'?s context length)",  # vLLM, SGLang
    r"greater than the context length|context length of only \d+ tokens",  # LM Studio
    r"exceeded model token limit",  # Moonshot
    r"`inputs` (?:tokens \+ `max_new_tokens` must be <=|must have less than)",  # TGI
    r"maximum allowed input length of [\d,]+ tokens",  # Poolside by OpenRouter
    r"range of input length should be",  # DashScope
    r"too many tokens: (?:total|size|the)",  # Cohere
    # A request larger than a whole minute's allowance: waiting cannot help, shrinking can.
    r"request too large for (?:model |`|gpt|[\w.-]+ in organization)",  # OpenAI, Groq
)
_OVERFLOW = re.compile("|".join(_OVERFLOW_WORDINGS), re.IGNORECASE | re.DOTALL)

# Words that overflow messages share with throttling, where waiting is right and shrinking is not.
_THROTTLED = re.compile(
    r"too many tokens, please wait|too many requests|throttl|would exceed .{0,60}rate limit"
    r"|exceeded .{0,40}rate limit|rate limit (?:reached|exceeded)",
    re.IGNORECASE | re.DOTALL,
)

# Money and permission do not come back by waiting a few seconds.
_EXHAUSTED = re.compile(
    r"insufficient[_ ](?:quota|balance|funds|credits?)|credit balance is too low"
    r"|requires more credits|exceeded your current quota|billing[_ ](?:hard[_ ])?(?:limit|not)"
    r"|(?:monthly|spend(?:ing)?) (?:usage |spend )?limit|out of (?:budget|credits)|usage limit reached"
    r"|account is not active|payment required",
    re.IGNORECASE,
)

# Google words a short-lived limit like a used-up plan, and then says how long to wait.
_WAIT_NAMED = re.compile(
    r"(?:retry|try again) in (?:about )?\d|retry[_ ]?(?:delay|after)\W{0,4}\d", re.IGNORECASE
)

_RETRYABLE_WORDINGS = (
    r"overloaded|over capacity|at capacity|high demand|queue (?:is )?full",
    r"rate[_ -]?limit|too many (?:requests|tokens, please wait)|throttl|slow down",
    r"resource[_ ](?:has been )?exhausted|tokens per minute|requests per minute",
    r"service[_ ]?(?:is )?(?:temporarily )?unavailable|temporarily unavailable",
    r"\bUNAVAILABLE\b|unavailable_error|loading model|model is (?:currently )?loading",
    r"internal[_ ](?:server )?error|server[_ ]error|api_error|server had an error",
    r"error occurred while processing your request|unexpected error.{0,40}try again",
    r"bad gateway|gateway time-?out|upstream (?:connect|error|request)|reset before headers",
    r"provider returned error|no instances available|model_?not_?ready",
    r"(?:connection|network|transport|socket)[_ ]?(?:error|reset|refused|closed|aborted|lost|failed)",
    r"connection (?:was |has been )?(?:forcibly )?(?:reset|refused|closed|aborted|lost)",
    r"connection attempts failed|cannot connect|failed to connect|broken pipe|socket hang up",
    r"peer closed connection|incomplete (?:chunked )?read|server disconnected|other side closed",
    r"name resolution|getaddrinfo|name or service not known",
    r"timed? ?out|timeout|deadline[_ ]exceeded|request_timeout",
    r"stream (?:ended|closed|broke|was cut)|ended without|unexpected (?:eof|end of (?:stream|data))",
    r"(?:http|status|code|error)\W{0,6}(?:code\W{0,3})?(?:408|409|425|429|5(?:0[0234]|2[0-9]))\b",
    r"^(?:408|409|425|429|5(?:0[0234]|2[0-9]))\b",
)
_RETRYABLE = re.compile("|".join(_RETRYABLE_WORDINGS), re.IGNORECASE | re.DOTALL)


def is_overflow_message(text: str) -> bool:
    """Whether the text says that the request did not fit the model's context (§3.7, source 2)."""
    return _OVERFLOW.search(text) is not None and _THROTTLED.search(text) is None


def is_retryable_message(text: str) -> bool:
    """Whether the text names a passing condition. Check `is_overflow_message` first (§3.7)."""
    if _EXHAUSTED.search(text) is not None and _WAIT_NAMED.search(text) is None:
        return False
    return _RETRYABLE.search(text) is not None


_NUMBER = re.compile(r"(?<![\w.-])\d{1,3}(?:,\d{3})+(?![\w,])|(?<![\w.,-])\d+(?![\w,]|\.\d)")
# Beyond that a number in the text is an id, a time or a size in bytes.
_MOST_WINDOWS = 100


def refused_tokens(text: str, context_window: int) -> int | None:
    """How many tokens the provider counted in a request that did not fit, where its text says so."""
    numbers = (int(found.replace(",", "")) for found in _NUMBER.findall(text))
    return max(
        (number for number in numbers if context_window < number <= context_window * _MOST_WINDOWS),
        default=None,
    )
