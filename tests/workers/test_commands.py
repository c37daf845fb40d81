"""Commands run wherever the session is: here, after a claim, or on the owner."""

from __future__ import annotations

from tests.workers.kit import Fleet


async def test_a_prompt_accepted_by_an_api_is_driven_by_a_worker(fleet: Fleet) -> None:
    api = await fleet.api()
    await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: hello")
    assert await fleet.settled(operation) == ["completed"]
    texts = await fleet.texts(session)
    assert len(texts) == 2
    assert "hello" in texts[1]
