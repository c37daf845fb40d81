"""The shell tool against a real shell: output, bounds, timeout, abort, and no process left behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from harness.context import BACKGROUND, AbortController
from harness.messages import AgentToolResult, plain_text
from harness.tools.bash import BashLimits, BashTool, BoundedOutput, CommandFailed


class _Clock:
    """Real sleeping, scaled monotonic time: checkpoints come due without waiting for them."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self._scale

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Updates:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def __call__(self, partial: AgentToolResult, *, checkpoint: bool = False) -> None:
        self.seen.append((plain_text(partial.content), checkpoint))


async def run(
    folder: Path,
    command: str,
    *,
    timeout: float | None = None,
    updates: _Updates | None = None,
    controller: AbortController | None = None,
    limits: BashLimits | None = None,
    scale: float = 1.0,
) -> AgentToolResult:
    tool = BashTool(folder, limits=limits, clock=_Clock(scale))
    arguments: dict[str, Any] = {"command": command}
    if timeout is not None:
        arguments["timeout"] = timeout
    context = BACKGROUND
    if controller is not None:
        context = context.with_abort_signal(controller.signal)
    invocation: Any = None  # the tool keeps no memos
    return await tool.execute("call", arguments, updates or _Updates(), None, invocation, context)


async def test_output_of_both_streams_comes_back(tmp_path: Path) -> None:
    result = await run(tmp_path, "echo out; echo err >&2; pwd")
    text = plain_text(result.content)
    assert "out\n" in text
    assert "err\n" in text
    assert str(tmp_path) in text
    assert result.details == {"exitCode": 0}


async def test_a_failing_command_is_an_error_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"before\n\[exit code 3\]"):
        await run(tmp_path, "printf before; echo; exit 3")


async def test_long_output_is_bounded_and_says_so(tmp_path: Path) -> None:
    result = await run(tmp_path, "seq 1 100000", limits=BashLimits(output_chars=1_000))
    text = plain_text(result.content)
    assert len(text) < 1_100
    assert text.startswith("[")
    assert text.endswith("100000\n")


async def test_broken_utf8_and_nul_survive(tmp_path: Path) -> None:
    result = await run(tmp_path, r"printf 'a\377b\000c'")
    assert plain_text(result.content) == "a\ufffdb\x00c"


@pytest.mark.parametrize("way", ["timeout", "abort"])
async def test_the_whole_process_group_is_stopped(tmp_path: Path, way: str) -> None:
    # The command ignores the polite signal and leaves a child behind: both must go.
    command = (
        f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"
    )
    controller = AbortController()
    task = asyncio.create_task(
        run(
            tmp_path,
            command,
            timeout=0.3 if way == "timeout" else 60,
            controller=controller,
        )
    )
    await _written(tmp_path / "self")
    if way == "abort":
        controller.abort()
    with pytest.raises(CommandFailed, match="stopped"):
        await task
    for name in ("child", "self"):
        pid = int((tmp_path / name).read_text())
        await _gone(pid)


async def test_a_background_child_does_not_keep_the_call_open(tmp_path: Path) -> None:
    result = await run(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo done")
    assert plain_text(result.content) == "done\n"
    await _gone(int((tmp_path / "child").read_text()))


async def test_a_cancelled_call_leaves_nothing_running(tmp_path: Path) -> None:
    task = asyncio.create_task(run(tmp_path, f"echo $$ > {tmp_path}/self; sleep 60"))
    await _written(tmp_path / "self")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(int((tmp_path / "self").read_text()))


async def test_updates_are_live_and_checkpoints_are_rare_and_different(tmp_path: Path) -> None:
    updates = _Updates()
    # Twenty times faster clock: a checkpoint comes due every 100 ms of real time.
    await run(
        tmp_path,
        "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.15; done",
        updates=updates,
        scale=20,
    )
    stored = [text for text, checkpoint in updates.seen if checkpoint]
    assert len(updates.seen) >= 3
    assert len(stored) >= 2
    assert len(set(stored)) == len(stored)
    assert updates.seen[0][0].startswith("line 1")


async def test_a_quiet_command_reports_nothing(tmp_path: Path) -> None:
    updates = _Updates()
    await run(tmp_path, "sleep 0.4", updates=updates)
    assert updates.seen == []


def test_bounded_output_keeps_the_newest() -> None:
    output = BoundedOutput(5)
    for piece in ("ab", "cd", "efgh"):
        output.write(piece)
    assert output.text() == "[3 earlier characters are not shown]\ndefgh"


async def _written(path: Path) -> None:
    for _ in range(1_000):
        if path.exists() and path.read_text().endswith("\n"):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{path} was never written")


async def _gone(pid: int) -> None:
    # A killed process may stay for a moment as a zombie of its reaper.
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"process {pid} is still running")
