"""Servers with a true background lifecycle: OpenAI responses and batches, Anthropic batches.

Jobs are kept by id and move from one state to the next only when a test says so. What is refused
outside is refused here: asking for an unknown job, results of one that has not ended, cancelling
what is not in the background.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.models.wires import message_item, response_object


@dataclass
class Job:
    """A piece of work under way; `outcome` is the body it ends with."""

    id: str
    request: dict[str, Any]
    state: str = "in_progress"
    outcome: Any = None
    error: dict[str, Any] | None = None


@dataclass
class BackgroundServer:
    """The jobs by id, the files, and how many calls came. `down` answers everything with 503."""

    jobs: dict[str, Job] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    port: int = 0
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def only(self) -> Job:
        """The one job there is."""
        (job,) = self.jobs.values()
        return job

    def finish(self, text: str) -> None:
        """End the one job with a text."""
        job = self.only
        job.state = "completed"
        if job.id.startswith("resp"):
            job.outcome = response_object([message_item(text)], id=job.id, background=True)
        elif job.id.startswith("batch"):
            job.outcome = {
                "response": {"status_code": 200, "body": response_object([message_item(text)])}
            }
        else:
            message = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-5",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1_000_000, "output_tokens": 5},
            }
            job.outcome = {"type": "succeeded", "message": message}

    def refuse(self, text: str) -> None:
        """End the one job with a rate limit of its own, in the words of its service."""
        job = self.only
        error = {"type": "rate_limit_exceeded", "code": "rate_limit_exceeded", "message": text}
        if job.id.startswith("resp"):
            job.state = "failed"
            job.outcome = response_object(status="failed", id=job.id, background=True, error=error)
        elif job.id.startswith("batch"):
            job.state = "completed"
            job.outcome = {"response": {"status_code": 429, "body": {"error": error}}}
        else:
            job.state = "completed"
            own = {"type": "rate_limit_error", "message": text}
            job.outcome = {"type": "errored", "error": {"type": "error", "error": own}}

    def app(self) -> Starlette:
        """The routes of the three services."""
        return Starlette(
            routes=[
                Route("/v1/responses", self._create_response, methods=["POST"]),
                Route("/v1/responses/{id}", self._get_response),
                Route("/v1/responses/{id}/cancel", self._cancel_response, methods=["POST"]),
                Route("/v1/files", self._create_file, methods=["POST"]),
                Route("/v1/files/{id}", self._delete_file, methods=["DELETE"]),
                Route("/v1/files/{id}/content", self._file),
                Route("/v1/batches", self._create_batch, methods=["POST"]),
                Route("/v1/batches/{id}", self._get_batch),
                Route("/v1/batches/{id}/cancel", self._cancel_batch, methods=["POST"]),
                Route("/v1/messages/batches", self._create_messages, methods=["POST"]),
                Route("/v1/messages/batches/{id}", self._get_messages),
                Route("/v1/messages/batches/{id}/cancel", self._cancel_messages, methods=["POST"]),
                Route("/v1/messages/batches/{id}/results", self._messages_results),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        self.calls.append((request.method, request.url.path))
        if self.down:
            return JSONResponse({"error": {"message": "try later", "type": "x"}}, 503)
        job_id = request.path_params.get("id", "")
        if job_id and job_id not in self.jobs and job_id not in self.files:
            return JSONResponse({"error": {"message": "no such job", "type": "not_found"}}, 404)
        return None

    async def _create_response(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        job = Job(f"resp_{next(self.ids)}", body, state="queued")
        if not body.get("background"):
            return JSONResponse(response_object([message_item("at once")]))
        self.jobs[job.id] = job
        return JSONResponse(self._response(job))

    def _response(self, job: Job) -> dict[str, Any]:
        if job.outcome is not None:
            return job.outcome
        return response_object(status=job.state, id=job.id, background=True, usage=None)

    async def _get_response(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return JSONResponse(self._response(self.jobs[request.path_params["id"]]))

    async def _cancel_response(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        job = self.jobs[request.path_params["id"]]
        job.state = "cancelled"
        return JSONResponse(self._response(job))

    async def _create_file(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        file_id = f"file_{next(self.ids)}"
        self.files[file_id] = await _upload(request)
        return JSONResponse(
            {
                "id": file_id,
                "object": "file",
                "bytes": 1,
                "created_at": 1,
                "filename": "batch.jsonl",
                "purpose": "batch",
                "status": "processed",
            }
        )

    async def _delete_file(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        del self.files[request.path_params["id"]]
        return JSONResponse({"id": request.path_params["id"], "object": "file", "deleted": True})

    async def _file(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return PlainTextResponse(self.files[request.path_params["id"]])

    async def _create_batch(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        (line,) = self.files[body["input_file_id"]].splitlines()
        job = Job(f"batch_{next(self.ids)}", {**body, **json.loads(line)})
        self.jobs[job.id] = job
        return JSONResponse(self._batch(job))

    def _batch(self, job: Job) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "id": job.id,
            "object": "batch",
            "endpoint": "/v1/responses",
            "input_file_id": job.request["input_file_id"],
            "completion_window": "24h",
            "status": job.state,
            "created_at": 1_700_000_000,
            "request_counts": {"total": 1, "completed": 0, "failed": 0},
        }
        if job.outcome is not None:
            output = f"file_of_{job.id}"
            line = {"id": "x", "custom_id": job.request["custom_id"], "error": None, **job.outcome}
            self.files[output] = json.dumps(line)
            answer["output_file_id"] = output
        return answer

    async def _get_batch(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return JSONResponse(self._batch(self.jobs[request.path_params["id"]]))

    async def _cancel_batch(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        job = self.jobs[request.path_params["id"]]
        job.state = "cancelled"
        return JSONResponse(self._batch(job))

    async def _create_messages(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        (only,) = body["requests"]
        job = Job(f"msgbatch_{next(self.ids)}", only)
        self.jobs[job.id] = job
        return JSONResponse(self._messages(job))

    def _messages(self, job: Job) -> dict[str, Any]:
        ended = job.state in ("completed", "cancelled")
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else job.state,
            "request_counts": {
                "processing": 0 if ended else 1,
                "succeeded": 0,
                "errored": 0,
                "canceled": 0,
                "expired": 0,
            },
            "created_at": "2026-11-30T00:00:00Z",
            "expires_at": "2026-12-01T00:00:00Z",
            "ended_at": "2026-11-30T01:00:00Z" if ended else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"http://127.0.0.1:{self.port}/v1/messages/batches/{job.id}/results"
            if ended
            else None,
        }

    async def _get_messages(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return JSONResponse(self._messages(self.jobs[request.path_params["id"]]))

    async def _cancel_messages(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        job = self.jobs[request.path_params["id"]]
        job.state = "cancelled"
        job.outcome = {"type": "canceled"}
        return JSONResponse(self._messages(job))

    async def _messages_results(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        job = self.jobs[request.path_params["id"]]
        if job.outcome is None:
            return JSONResponse({"error": {"message": "has not ended", "type": "x"}}, 400)
        line = {"custom_id": job.request["custom_id"], "result": job.outcome}
        return PlainTextResponse(json.dumps(line) + "\n", media_type="application/x-jsonl")


async def _upload(request: Request) -> str:
    """The content of the file part of a multipart form."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    for part in message_from_bytes(head + await request.body()).walk():
        if part.get_filename() is not None:
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            return content.decode()
    raise AssertionError("the form holds no file")


@asynccontextmanager
async def background_server() -> AsyncIterator[BackgroundServer]:
    """A server for the length of the block."""
    server = BackgroundServer()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.port = listening.getsockname()[1]
        config = uvicorn.Config(server.app(), log_level="error", lifespan="off", ws="none")
        running = uvicorn.Server(config)
        task = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            yield server
        finally:
            running.should_exit = True
            await task
