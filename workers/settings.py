"""The one typed settings object of a process: environment `LANEWAY_*` over `laneway.toml` (design §8)."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from harness.errors import InvalidArgument
from harness.models.configured import ModelEntry
from harness.settings import ModelIdentity
from storage_pg.due import PollSettings
from storage_pg.partitions import Period

# What answers when no model is configured: echoes, so that an installation can be tried.
_ECHO = {"provider": "scripted", "modelId": "echo"}


class Settings(BaseSettings):
    """Everything that configures an API process or a worker. Durations are seconds unless named
    otherwise; sizes are bytes."""

    model_config = SettingsConfigDict(
        env_prefix="LANEWAY_", toml_file="laneway.toml", extra="ignore", frozen=True
    )

    # The database. `database_url` may lead through a transaction-mode pooler, `direct_database_url`
    # must not; `owner_database_url` is the owner role's, for partitions and migrations.
    database_url: str
    direct_database_url: str | None = None
    owner_database_url: str | None = None
    pool_size: int = Field(default=8, ge=2)

    # The public HTTP address.
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)

    # The address for other hosts: where it listens (0: any free port) and what it tells the others.
    internal_host: str = "127.0.0.1"
    internal_port: int = Field(default=0, ge=0, le=65535)
    host_url: str | None = None
    host_name: str | None = None
    cluster_secret: SecretStr
    # What a scrape of the public port presents as bearer token; without one that port has no metrics.
    metrics_token: SecretStr | None = None
    internal_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0)

    # The largest session file that an import takes, and the metadata that search can filter by (names
    # in the application's metadata, with dots for depth; `cwd` and `parentSessionId` too).
    import_max_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    search_metadata_fields: list[str] = Field(default_factory=list[str])

    # How much one process does.
    max_drives: int = Field(default=64, gt=0)
    max_sessions: int = Field(default=1_000, gt=0)
    tenant_drives: int = Field(default=64, gt=0)
    command_seconds: float = Field(default=30.0, gt=0)
    watch_items: int = Field(default=20_000, gt=0)
    watch_bytes: int = Field(default=32 * 1024 * 1024, gt=0)

    # When things happen.
    drain_seconds: float = Field(default=30.0, ge=0)
    # A pass may go on for so long after its operation was cancelled, and a session may take so long
    # to close; then they are not waited for any longer.
    abort_seconds: float = Field(default=30.0, ge=0)
    close_seconds: float = Field(default=10.0, gt=0)
    # So long an operation that hosts died under keeps others of its kind waiting (0: not at all).
    alone_seconds: float = Field(default=30.0, ge=0)
    linger_ms: int = Field(default=150, ge=0)
    hold_due_ms: int = Field(default=5_000, ge=0)
    death_check_ms: int = Field(default=200, gt=0)
    heartbeat_seconds: float = Field(default=3.0, gt=0)
    silent_seconds: float = Field(default=15.0, gt=0)
    watch_poll_ms: int = Field(default=5_000, gt=0)
    poll_first_ms: int = Field(default=5_000, gt=0)
    poll_longest_ms: int = Field(default=300_000, gt=0)
    partition_period: Period = "month"
    partitions_ahead: int = Field(default=3, ge=1)

    # How long what is over is kept: receipts in days (None: for ever; a repeated operation id is known
    # as long as its receipt), idempotency keys in hours after they expired.
    receipt_days: int | None = Field(default=None, ge=7)
    expired_key_hours: int = Field(default=24, ge=0)

    # What sessions without an agent profile use. `tools` is `package.module:attribute`.
    models: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    default_model: str | None = None
    system_prompt: str = "You are a helpful assistant."
    tools: str | None = None
    retry_max: int = Field(default=3, ge=0)
    retry_base_ms: int = Field(default=2_000, ge=0)

    @field_validator("cluster_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr) -> SecretStr:
        if len(secret.get_secret_value()) < 16:
            raise ValueError("the cluster secret needs at least 16 characters")
        return secret

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def direct_url(self) -> str:
        """The address for leases, LISTEN and migrations."""
        return self.direct_database_url or self.database_url

    @property
    def polls(self) -> PollSettings:
        """How long to wait before polls of background responses."""
        return PollSettings(self.poll_first_ms, self.poll_longest_ms)

    @property
    def model_entries(self) -> tuple[ModelEntry, ...]:
        """The configured models; raises `InvalidArgument` that says which entry is wrong."""
        try:
            return msgspec.convert(self.models or [_ECHO], type=tuple[ModelEntry, ...])
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"LANEWAY_MODELS is not configured well: {error}") from error

    @property
    def default_identity(self) -> ModelIdentity:
        """The model of lanes that nobody configured: `default_model`, or the first one."""
        if self.default_model is None:
            first = self.model_entries[0]
            return ModelIdentity(provider=first.provider, model_id=first.model_id)
        provider, separator, model_id = self.default_model.partition("/")
        if not separator:
            raise InvalidArgument("LANEWAY_DEFAULT_MODEL is written provider/modelId")
        return ModelIdentity(provider=provider, model_id=model_id)
