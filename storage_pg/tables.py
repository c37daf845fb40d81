"""Table metadata for catalogue queries; a test holds it against what the migrations make."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

from storage_pg.layout import SCHEMA

METADATA = MetaData(schema=SCHEMA)

# Tables whose rows belong to a tenant and are shown to it alone.
TENANT_OWNED = (
    "api_keys",
    "agents",
    "credentials",
    "webhooks",
    "sessions",
    "entries",
    "usage_ledger",
    "branch_entries",
    "branch_meta",
    "scalar_values",
    "list_values",
    "open_operations",
    "operations",
    "idempotency_keys",
    "search_sessions",
    "search_entries",
)


def _tenant() -> Column[object]:
    return Column("tenant_id", Uuid, ForeignKey(f"{SCHEMA}.tenants.id"), nullable=False)


tenants = Table(
    "tenants",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("limits", JSONB, nullable=False, server_default=text("'{}'")),
    Index("tenants_name", "name", unique=True),
)

api_keys = Table(
    "api_keys",
    METADATA,
    Column("id", Text, primary_key=True),
    _tenant(),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Index("api_keys_tenant", "tenant_id", "created_at"),
)

agents = Table(
    "agents",
    METADATA,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("profile", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("agents_version", "tenant_id", "name", "version", unique=True),
)

credentials = Table(
    "credentials",
    METADATA,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("provider", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("credentials_provider", "tenant_id", "provider", unique=True),
)

webhooks = Table(
    "webhooks",
    METADATA,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("key_id", Text, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Index("webhooks_tenant", "tenant_id"),
)

hosts = Table(
    "hosts",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("url", Text),
    Column("process_id", Integer, nullable=False),
    Column("lock_key", BigInteger, nullable=False),
    Column("lease_pid", Integer, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    Column("told_to_leave", Boolean, nullable=False, server_default=text("false")),
)

sessions = Table(
    "sessions",
    METADATA,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("agent", Text),
    Column("name", Text),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column("cwd", Text),
    Column("parent_session_id", Uuid),
    Column("legacy_parent_session_path", Text),
    Column("storage_version", Integer, nullable=False),
    Column("store_generation", Integer, nullable=False, server_default=text("0")),
    Column("next_seq", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("owner_host", Uuid),
    Column("message_count", BigInteger, nullable=False, server_default=text("0")),
    Column("usage", Text, nullable=False),
    Index("sessions_listing", "tenant_id", "created_at", "id"),
    Index(
        "sessions_metadata",
        "metadata",
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    ),
    Index("sessions_owner", "owner_host", postgresql_where=text("owner_host IS NOT NULL")),
)

entries = Table(
    "entries",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("parent_id", Uuid),
    Column("seq", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("custom_type", Text),
    Column("payload", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "id"),
    Index("entries_seq", "session_id", "seq"),
)

usage_ledger = Table(
    "usage_ledger",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("entry_id", Uuid),
    Column("adjustment", Boolean, nullable=False),
    Column("usage", Text, nullable=False),
    Column("details", Text),
    PrimaryKeyConstraint("session_id", "id"),
    Index("usage_ledger_seq", "session_id", "seq"),
)

branch_entries = Table(
    "branch_entries",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("branch_id", BigInteger, nullable=False),
    Column("entry_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("entry_seq", BigInteger, nullable=False),
    Column("entry_type", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "entry_id", "branch_id"),
    Index("branch_entries_order", "session_id", "branch_id", "entry_seq"),
    Index(
        "branch_entries_compactions",
        "session_id",
        "branch_id",
        "entry_seq",
        postgresql_where=text("entry_type = 'compaction'"),
    ),
)

branch_meta = Table(
    "branch_meta",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("branch_id", BigInteger, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("tip_entry_id", Uuid, nullable=False),
    Column("tip_seq", BigInteger, nullable=False),
    Column("base_branch_id", BigInteger),
    Column("base_seq", BigInteger),
    PrimaryKeyConstraint("session_id", "branch_id"),
    Index("branch_meta_tip", "session_id", "tip_entry_id", unique=True),
)

scalar_values = Table(
    "scalar_values",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("namespace", Text(collation="C"), nullable=False),
    Column("key", Text(collation="C"), nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "namespace", "key"),
    Index("scalar_values_operations", "key", postgresql_where=text("namespace = 'pi.op.state'")),
)

list_values = Table(
    "list_values",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("namespace", Text(collation="C"), nullable=False),
    Column("key", Text(collation="C"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "namespace", "key", "seq"),
)

open_operations = Table(
    "open_operations",
    METADATA,
    Column("operation_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("lane", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("accepted_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("dispatched_at", BigInteger),
    Column("passes", Integer, nullable=False, server_default=text("0")),
    Column("progress_seq", BigInteger, nullable=False, server_default=text("0")),
    Column("last_reason", Text),
    Column("driven_by", Uuid),
    Column("traceparent", Text),
    Index("open_operations_due", "tenant_id", "due_at"),
    Index("open_operations_soonest", "due_at"),
    Index(
        "open_operations_dispatched",
        "tenant_id",
        "dispatched_at",
        postgresql_where=text("dispatched_at IS NOT NULL"),
    ),
    Index("open_operations_session", "session_id"),
    Index(
        "open_operations_driven",
        "tenant_id",
        "driven_by",
        postgresql_where=text("driven_by IS NOT NULL"),
    ),
)

operations = Table(
    "operations",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("lane", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("error", Text),
    Column("result", Text),
    Column("accepted_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Index("operations_listing", "tenant_id", "accepted_at", "id"),
    Index("operations_session", "session_id", "lane", "accepted_at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    METADATA,
    Column("tenant_id", Uuid, nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer),
    Column("response", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("tenant_id", "key"),
    Index("idempotency_keys_expiry", "expires_at"),
)

search_sessions = Table(
    "search_sessions",
    METADATA,
    Column("session_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("stamp", Text),
    Column("labels", ARRAY(Text), nullable=False),
    Index("search_sessions_tenant", "tenant_id", "session_id"),
    Index("search_sessions_labels", "labels", postgresql_using="gin"),
)

search_entries = Table(
    "search_entries",
    METADATA,
    Column("session_id", Uuid, nullable=False),
    Column("entry_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("terms", TSVECTOR, nullable=False),
    PrimaryKeyConstraint("session_id", "entry_id"),
    Index(
        "search_entries_terms",
        "terms",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    ),
)
