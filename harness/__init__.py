"""Durable agent sessions as a library: the names that applications use, imported at their first use.

Importing this package alone costs nothing; a name brings its module with it. See `docs/library.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.clock import Clock as Clock
    from harness.clock import SystemClock as SystemClock
    from harness.context import BACKGROUND as BACKGROUND
    from harness.context import AbortController as AbortController
    from harness.context import AbortSignal as AbortSignal
    from harness.context import Context as Context
    from harness.entries import BranchSummaryEntry as BranchSummaryEntry
    from harness.entries import CompactionEntry as CompactionEntry
    from harness.entries import CustomEntry as CustomEntry
    from harness.entries import Entry as Entry
    from harness.entries import MessageEntry as MessageEntry
    from harness.environment import Environment as Environment
    from harness.errors import HarnessClosed as HarnessClosed
    from harness.errors import HarnessError as HarnessError
    from harness.errors import HarnessFault as HarnessFault
    from harness.errors import InvalidArgument as InvalidArgument
    from harness.errors import LaneBusy as LaneBusy
    from harness.errors import LeaseLost as LeaseLost
    from harness.errors import NewerVersion as NewerVersion
    from harness.errors import OutcomeReplaced as OutcomeReplaced
    from harness.errors import SessionInUse as SessionInUse
    from harness.errors import SessionNotFound as SessionNotFound
    from harness.errors import StorageCorrupt as StorageCorrupt
    from harness.errors import StorageError as StorageError
    from harness.errors import TaggedError as TaggedError
    from harness.messages import AgentMessage as AgentMessage
    from harness.messages import AgentToolResult as AgentToolResult
    from harness.messages import AssistantMessage as AssistantMessage
    from harness.messages import CustomMessage as CustomMessage
    from harness.messages import ImageContent as ImageContent
    from harness.messages import TextContent as TextContent
    from harness.messages import ThinkingContent as ThinkingContent
    from harness.messages import ToolCall as ToolCall
    from harness.messages import ToolResultMessage as ToolResultMessage
    from harness.messages import UserMessage as UserMessage
    from harness.messages import plain_text as plain_text
    from harness.messages import text_result as text_result
    from harness.models.configured import ConfiguredModels as ConfiguredModels
    from harness.models.configured import ModelEntry as ModelEntry
    from harness.models.configured import build_models as build_models
    from harness.models.configured import parse_models as parse_models
    from harness.models.protocol import Model as Model
    from harness.models.protocol import Models as Models
    from harness.models.registry import ModelRegistry as ModelRegistry
    from harness.models.scripted import ScriptedProvider as ScriptedProvider
    from harness.models.scripted import scripted_model as scripted_model
    from harness.operation.events import EntryAdded as EntryAdded
    from harness.operation.events import HarnessEvent as HarnessEvent
    from harness.operation.events import MessageUpdate as MessageUpdate
    from harness.operation.events import ToolEnd as ToolEnd
    from harness.operation.events import ToolStart as ToolStart
    from harness.operation.results import LaneSnapshot as LaneSnapshot
    from harness.operation.results import OperationOutcome as OperationOutcome
    from harness.operation.results import RunOutcome as RunOutcome
    from harness.result import Err as Err
    from harness.result import Ok as Ok
    from harness.result import Result as Result
    from harness.runtime.agent_lane import AgentLane as AgentLane
    from harness.runtime.core import HarnessOptions as HarnessOptions
    from harness.runtime.drive import DriveOptions as DriveOptions
    from harness.runtime.harness import AgentHarness as AgentHarness
    from harness.runtime.requests import CompactionRequest as CompactionRequest
    from harness.runtime.requests import NavigationRequest as NavigationRequest
    from harness.runtime.requests import OperationRequest as OperationRequest
    from harness.runtime.requests import PromptRequest as PromptRequest
    from harness.runtime.resources import Resources as Resources
    from harness.search.notify import SearchNotifier as SearchNotifier
    from harness.search.service import EntryHit as EntryHit
    from harness.search.service import SearchError as SearchError
    from harness.search.service import SearchQuery as SearchQuery
    from harness.search.service import SessionHit as SessionHit
    from harness.search.source import RepositorySource as RepositorySource
    from harness.search.sqlite import SqliteSearch as SqliteSearch
    from harness.search.sync import SyncReport as SyncReport
    from harness.search.sync import sync_all as sync_all
    from harness.search.sync import sync_session as sync_session
    from harness.session.export_file import TransferDamaged as TransferDamaged
    from harness.session.fork import BranchFork as BranchFork
    from harness.session.fork import TreeFork as TreeFork
    from harness.session.once import Once as Once
    from harness.session.once import OnceUnknown as OnceUnknown
    from harness.session.once import Superseded as Superseded
    from harness.session.once import once_at as once_at
    from harness.session.repo import CreateOptions as CreateOptions
    from harness.session.repo import Repository as Repository
    from harness.session.repo import SessionRepo as SessionRepo
    from harness.session.repo_files import JsonlSessions as JsonlSessions
    from harness.session.repo_files import SqliteSessions as SqliteSessions
    from harness.session.repo_memory import MemorySessions as MemorySessions
    from harness.session.rewrite import Keep as Keep
    from harness.session.session import Session as Session
    from harness.session.transfer import Export as Export
    from harness.session.transfer import Imported as Imported
    from harness.session.transfer import ImportOptions as ImportOptions
    from harness.session.transfer import copy_session as copy_session
    from harness.session.transfer import import_session as import_session
    from harness.session.transfer import open_export as open_export
    from harness.session.tree import BranchQuery as BranchQuery
    from harness.session.tree import EntryQuery as EntryQuery
    from harness.session.tree import SessionView as SessionView
    from harness.settings import CompactionSettings as CompactionSettings
    from harness.settings import LaneConfiguration as LaneConfiguration
    from harness.settings import ModelIdentity as ModelIdentity
    from harness.settings import RetryPolicy as RetryPolicy
    from harness.settings import StreamOptions as StreamOptions
    from harness.storage.address import Value as Value
    from harness.storage.address import ValueList as ValueList
    from harness.storage.address import list_of as list_of
    from harness.storage.address import value as value
    from harness.storage.metadata import SessionMetadata as SessionMetadata
    from harness.storage.protocol import BranchScan as BranchScan
    from harness.storage.protocol import EntryScan as EntryScan
    from harness.storage.protocol import ListRead as ListRead
    from harness.storage.protocol import Storage as Storage
    from harness.storage.protocol import UsageScan as UsageScan
    from harness.tools.protocol import AgentTool as AgentTool
    from harness.tools.protocol import FunctionTool as FunctionTool
    from harness.tools.protocol import ToolCallRequest as ToolCallRequest
    from harness.usage import SessionStats as SessionStats
    from harness.usage import Usage as Usage
    from harness.usage import UsageRow as UsageRow

# Where each name lives.
_HOMES = {
    "harness.environment": ("Environment",),
    "harness.clock": (
        "Clock",
        "SystemClock",
    ),
    "harness.context": (
        "BACKGROUND",
        "AbortController",
        "AbortSignal",
        "Context",
    ),
    "harness.result": (
        "Err",
        "Ok",
        "Result",
    ),
    "harness.errors": (
        "HarnessError",
        "HarnessFault",
        "HarnessClosed",
        "InvalidArgument",
        "LaneBusy",
        "LeaseLost",
        "NewerVersion",
        "OutcomeReplaced",
        "SessionInUse",
        "SessionNotFound",
        "StorageCorrupt",
        "StorageError",
        "TaggedError",
    ),
    "harness.messages": (
        "AgentMessage",
        "AgentToolResult",
        "AssistantMessage",
        "CustomMessage",
        "ImageContent",
        "TextContent",
        "ThinkingContent",
        "ToolCall",
        "ToolResultMessage",
        "UserMessage",
        "plain_text",
        "text_result",
    ),
    "harness.entries": (
        "BranchSummaryEntry",
        "CompactionEntry",
        "CustomEntry",
        "Entry",
        "MessageEntry",
    ),
    "harness.usage": (
        "SessionStats",
        "Usage",
        "UsageRow",
    ),
    "harness.settings": (
        "CompactionSettings",
        "LaneConfiguration",
        "ModelIdentity",
        "RetryPolicy",
        "StreamOptions",
    ),
    "harness.session.repo": (
        "CreateOptions",
        "Repository",
        "SessionRepo",
    ),
    "harness.session.repo_memory": ("MemorySessions",),
    "harness.session.repo_files": (
        "JsonlSessions",
        "SqliteSessions",
    ),
    "harness.session.session": ("Session",),
    "harness.session.once": (
        "Once",
        "OnceUnknown",
        "Superseded",
        "once_at",
    ),
    "harness.session.tree": (
        "BranchQuery",
        "EntryQuery",
        "SessionView",
    ),
    "harness.session.fork": (
        "BranchFork",
        "TreeFork",
    ),
    "harness.session.rewrite": ("Keep",),
    "harness.session.transfer": (
        "Export",
        "Imported",
        "ImportOptions",
        "copy_session",
        "import_session",
        "open_export",
    ),
    "harness.session.export_file": ("TransferDamaged",),
    "harness.storage.metadata": ("SessionMetadata",),
    "harness.storage.address": (
        "Value",
        "ValueList",
        "list_of",
        "value",
    ),
    "harness.storage.protocol": (
        "BranchScan",
        "EntryScan",
        "ListRead",
        "Storage",
        "UsageScan",
    ),
    "harness.runtime.core": ("HarnessOptions",),
    "harness.runtime.harness": ("AgentHarness",),
    "harness.runtime.agent_lane": ("AgentLane",),
    "harness.runtime.drive": ("DriveOptions",),
    "harness.runtime.requests": (
        "CompactionRequest",
        "NavigationRequest",
        "OperationRequest",
        "PromptRequest",
    ),
    "harness.operation.events": (
        "EntryAdded",
        "HarnessEvent",
        "MessageUpdate",
        "ToolEnd",
        "ToolStart",
    ),
    "harness.operation.results": (
        "LaneSnapshot",
        "OperationOutcome",
        "RunOutcome",
    ),
    "harness.runtime.resources": ("Resources",),
    "harness.tools.protocol": (
        "AgentTool",
        "FunctionTool",
        "ToolCallRequest",
    ),
    "harness.models.protocol": (
        "Model",
        "Models",
    ),
    "harness.models.registry": ("ModelRegistry",),
    "harness.models.scripted": (
        "ScriptedProvider",
        "scripted_model",
    ),
    "harness.models.configured": (
        "ConfiguredModels",
        "ModelEntry",
        "build_models",
        "parse_models",
    ),
    "harness.search.service": (
        "EntryHit",
        "SearchError",
        "SearchQuery",
        "SessionHit",
    ),
    "harness.search.source": ("RepositorySource",),
    "harness.search.sqlite": ("SqliteSearch",),
    "harness.search.sync": (
        "SyncReport",
        "sync_all",
        "sync_session",
    ),
    "harness.search.notify": ("SearchNotifier",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BACKGROUND",
    "AbortController",
    "AbortSignal",
    "AgentHarness",
    "AgentLane",
    "AgentMessage",
    "AgentTool",
    "AgentToolResult",
    "AssistantMessage",
    "BranchFork",
    "BranchQuery",
    "BranchScan",
    "BranchSummaryEntry",
    "Clock",
    "CompactionEntry",
    "CompactionRequest",
    "CompactionSettings",
    "ConfiguredModels",
    "Context",
    "CreateOptions",
    "CustomEntry",
    "CustomMessage",
    "DriveOptions",
    "Entry",
    "EntryAdded",
    "EntryHit",
    "EntryQuery",
    "EntryScan",
    "Environment",
    "Err",
    "Export",
    "FunctionTool",
    "HarnessClosed",
    "HarnessError",
    "HarnessEvent",
    "HarnessFault",
    "HarnessOptions",
    "ImageContent",
    "ImportOptions",
    "Imported",
    "InvalidArgument",
    "JsonlSessions",
    "Keep",
    "LaneBusy",
    "LaneConfiguration",
    "LaneSnapshot",
    "LeaseLost",
    "ListRead",
    "MemorySessions",
    "MessageEntry",
    "MessageUpdate",
    "Model",
    "ModelEntry",
    "ModelIdentity",
    "ModelRegistry",
    "Models",
    "NavigationRequest",
    "NewerVersion",
    "Ok",
    "Once",
    "OnceUnknown",
    "OperationOutcome",
    "OperationRequest",
    "OutcomeReplaced",
    "PromptRequest",
    "Repository",
    "RepositorySource",
    "Resources",
    "Result",
    "RetryPolicy",
    "RunOutcome",
    "ScriptedProvider",
    "SearchError",
    "SearchNotifier",
    "SearchQuery",
    "Session",
    "SessionHit",
    "SessionInUse",
    "SessionMetadata",
    "SessionNotFound",
    "SessionRepo",
    "SessionStats",
    "SessionView",
    "SqliteSearch",
    "SqliteSessions",
    "Storage",
    "StorageCorrupt",
    "StorageError",
    "StreamOptions",
    "Superseded",
    "SyncReport",
    "SystemClock",
    "TaggedError",
    "TextContent",
    "ThinkingContent",
    "ToolCall",
    "ToolCallRequest",
    "ToolEnd",
    "ToolResultMessage",
    "ToolStart",
    "TransferDamaged",
    "TreeFork",
    "Usage",
    "UsageRow",
    "UsageScan",
    "UserMessage",
    "Value",
    "ValueList",
    "build_models",
    "copy_session",
    "import_session",
    "list_of",
    "once_at",
    "open_export",
    "parse_models",
    "plain_text",
    "scripted_model",
    "sync_all",
    "sync_session",
    "text_result",
    "value",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
