"""What an attempt used and what it cost, in US dollars (§1.6)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from harness.models.protocol import Model, ModelCost
from harness.usage import ZERO_USAGE, Usage, UsageCost

if TYPE_CHECKING:
    from genai_prices.types import AbstractUsage, PriceCalculation
    from pydantic_ai.usage import RequestUsage

_MILLION = 1_000_000


def usage_of(
    reported: RequestUsage,
    model: Model,
    api_url: str | None,
    details: Mapping[str, object] | None = None,
) -> Usage:
    """The reported tokens, in classes that do not overlap, with their price if one is known.

    `details` of the response may name a tier with prices of its own: a batch, a service class.
    """
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
        else _listed_cost(reported, usage, _PriceList(model, api_url, details))
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


def _listed_cost(reported: RequestUsage, usage: Usage, prices: _PriceList) -> UsageCost:
    paid = prices.price(reported)
    if paid is None:
        return UsageCost()
    read = prices.share(usage.cache_read, reported.input_tokens, "cache_read_tokens")
    written = prices.share(usage.cache_write, reported.input_tokens, "cache_write_tokens")
    return UsageCost(
        input=max(0.0, paid[0] - read - written),
        output=paid[1],
        cache_read=read,
        cache_write=written,
        total=sum(paid),
    )


@dataclass(frozen=True, slots=True)
class _PriceList:
    model: Model
    api_url: str | None
    details: Mapping[str, object] | None

    def price(self, usage: AbstractUsage) -> tuple[float, float] | None:
        """Input and output price, looked up by address and then by the provider's name."""
        from genai_prices import calc_price

        price: PriceCalculation | None = None
        # Unlisted, or counts that contradict each other: an unknown price is no failure. The
        # address may be a proxy's while the provider's name is known.
        context = {
            name: said for name, said in (self.details or {}).items() if isinstance(said, str)
        }
        if self.api_url is not None:
            with contextlib.suppress(LookupError, ValueError):
                price = calc_price(
                    usage,
                    self.model.model_id,
                    provider_api_url=self.api_url,
                    price_context=context,
                )
        if price is None:
            with contextlib.suppress(LookupError, ValueError):
                price = calc_price(
                    usage,
                    self.model.model_id,
                    provider_id=self.model.provider,
                    price_context=context,
                )
        return None if price is None else (float(price.input_price), float(price.output_price))

    def share(self, count: int, whole: int, kind: str) -> float:
        """The price of `count` tokens of one class, at the rate of a request of `whole` tokens."""
        if not count or not whole:
            return 0.0
        from genai_prices import Usage as Priced

        paid = self.price(Priced(**{"input_tokens": whole, kind: whole}))
        return 0.0 if paid is None else paid[0] * count / whole
