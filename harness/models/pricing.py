"""What an attempt used and what it cost, in US dollars (§1.6)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from harness.models.protocol import Model, ModelCost
from harness.usage import ZERO_USAGE, Usage, UsageCost

if TYPE_CHECKING:
    from genai_prices.types import AbstractUsage, PriceCalculation
    from pydantic_ai.usage import RequestUsage

_MILLION = 1_000_000


def usage_of(reported: RequestUsage, model: Model, api_url: str | None) -> Usage:
    """The reported tokens, in classes that do not overlap, with their price if one is known."""
    read, written = reported.cache_read_tokens, reported.cache_write_tokens
    usage = Usage(
        input=max(0, reported.input_tokens - read - written),
        output=reported.output_tokens,
        cache_read=read,
        cache_write=written,
        total_tokens=max(reported.input_tokens, read + written) + reported.output_tokens,
    )
    if usage == ZERO_USAGE:
        return usage
    cost = (
        configured_cost(usage, model.cost)
        if model.cost is not None
        else _listed_cost(reported, usage, model, api_url)
    )
    return msgspec.structs.replace(usage, cost=cost)


def configured_cost(usage: Usage, rates: ModelCost) -> UsageCost:
    """The cost at the rates of the model's own configuration."""
    spent = (
        usage.input * rates.input / _MILLION,
        usage.output * rates.output / _MILLION,
        usage.cache_read * rates.cache_read / _MILLION,
        usage.cache_write * rates.cache_write / _MILLION,
    )
    return UsageCost(
        input=spent[0],
        output=spent[1],
        cache_read=spent[2],
        cache_write=spent[3],
        total=sum(spent),
    )


def _listed_cost(
    reported: RequestUsage, usage: Usage, model: Model, api_url: str | None
) -> UsageCost:
    prices = _price(reported, model, api_url)
    if prices is None:
        return UsageCost()
    paid_in, paid_out = prices
    read = _share(usage.cache_read, reported.input_tokens, model, api_url, "cache_read_tokens")
    written = _share(usage.cache_write, reported.input_tokens, model, api_url, "cache_write_tokens")
    return UsageCost(
        input=max(0.0, paid_in - read - written),
        output=paid_out,
        cache_read=read,
        cache_write=written,
        total=paid_in + paid_out,
    )


def _share(count: int, whole: int, model: Model, api_url: str | None, kind: str) -> float:
    """The price of `count` tokens of one class, at the rate that applies to a request of `whole`."""
    if not count or not whole:
        return 0.0
    from genai_prices import Usage as Priced

    prices = _price(Priced(**{"input_tokens": whole, kind: whole}), model, api_url)
    return 0.0 if prices is None else prices[0] * count / whole


def _price(usage: AbstractUsage, model: Model, api_url: str | None) -> tuple[float, float] | None:
    """Input and output price by the price list, looked up by address and then by provider name."""
    from genai_prices import calc_price

    price: PriceCalculation | None = None
    # Unlisted, or counts that contradict each other: an unknown price is no failure. The address
    # may be a proxy's while the provider's name is known.
    if api_url is not None:
        with contextlib.suppress(LookupError, ValueError):
            price = calc_price(usage, model.model_id, provider_api_url=api_url)
    if price is None:
        with contextlib.suppress(LookupError, ValueError):
            price = calc_price(usage, model.model_id, provider_id=model.provider)
    return None if price is None else (float(price.input_price), float(price.output_price))
