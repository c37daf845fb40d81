-- Tables of Laneway, first version.
--
-- Instants that the harness stamps are bigint Unix milliseconds from its injected clock; instants
-- that only this database compares (heartbeats) are timestamptz. JSON documents rest as text:
-- jsonb refuses NUL and lone surrogate escapes and reorders keys, and taking text apart on every
-- insert costs more than it brings. Only session metadata, which is filtered on, is jsonb.

CREATE SCHEMA IF NOT EXISTS laneway;

-- Who is served. Not tenant-owned itself: the deployment's catalogue.
CREATE TABLE laneway.tenants (
    id          uuid PRIMARY KEY,
    name        text NOT NULL,
    created_at  bigint NOT NULL,
    disabled_at bigint,
    limits      jsonb NOT NULL DEFAULT '{}'
);
CREATE UNIQUE INDEX tenants_name ON laneway.tenants (name);

-- API keys lw_<id>_<secret>: only a hash of the secret is here.
CREATE TABLE laneway.api_keys (
    id           text PRIMARY KEY,
    tenant_id    uuid NOT NULL REFERENCES laneway.tenants (id),
    name         text NOT NULL,
    secret_hash  bytea NOT NULL,
    scopes       text[] NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    revoked_at   bigint
);
CREATE INDEX api_keys_tenant ON laneway.api_keys (tenant_id, created_at);

-- Named profiles; a change makes a new version, old versions stay.
CREATE TABLE laneway.agents (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL REFERENCES laneway.tenants (id),
    name        text NOT NULL,
    version     integer NOT NULL,
    profile     text NOT NULL,
    created_at  bigint NOT NULL
);
CREATE UNIQUE INDEX agents_version ON laneway.agents (tenant_id, name, version);

-- Provider credentials, encrypted by the application with the key that key_id names.
CREATE TABLE laneway.credentials (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL REFERENCES laneway.tenants (id),
    provider    text NOT NULL,
    key_id      text NOT NULL,
    ciphertext  bytea NOT NULL,
    created_at  bigint NOT NULL
);
CREATE UNIQUE INDEX credentials_provider ON laneway.credentials (tenant_id, provider);

-- Where a tenant wants to be told of events; the signing secret is encrypted like a credential.
CREATE TABLE laneway.webhooks (
    id           uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL REFERENCES laneway.tenants (id),
    url          text NOT NULL,
    events       text[] NOT NULL,
    key_id       text NOT NULL,
    ciphertext   bytea NOT NULL,
    created_at   bigint NOT NULL,
    disabled_at  bigint
);
CREATE INDEX webhooks_tenant ON laneway.webhooks (tenant_id);

-- Live processes, one row per incarnation of a lease connection. lock_key is the advisory lock
-- that this incarnation holds; lease_pid the backend that holds it; capacity how many operations it
-- drives at once.
CREATE TABLE laneway.hosts (
    id            uuid PRIMARY KEY,
    name          text NOT NULL,
    role          text NOT NULL,
    url           text,
    process_id    integer NOT NULL,
    lock_key      bigint NOT NULL,
    lease_pid     integer NOT NULL,
    capacity      integer NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    draining      boolean NOT NULL DEFAULT false
);

-- One row per session. fence rises with every claim; a writer whose fence is not this one writes
-- nothing. next_seq is the next free sequence number. message_count and usage are the maintained
-- totals of the entries and the ledger. Updated by every commit: no changing column is indexed
-- but the owner, which only claims change, so updates stay on their page.
CREATE TABLE laneway.sessions (
    id                          uuid PRIMARY KEY,
    tenant_id                   uuid NOT NULL REFERENCES laneway.tenants (id),
    created_at                  bigint NOT NULL,
    updated_at                  bigint NOT NULL,
    agent                       text,
    name                        text,
    metadata                    jsonb NOT NULL DEFAULT '{}',
    cwd                         text,
    parent_session_id           uuid,
    legacy_parent_session_path  text,
    storage_version             integer NOT NULL,
    store_generation            integer NOT NULL DEFAULT 0,
    next_seq                    bigint NOT NULL,
    fence                       bigint NOT NULL DEFAULT 0,
    owner_host                  uuid,
    message_count               bigint NOT NULL DEFAULT 0,
    usage                       text NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX sessions_listing ON laneway.sessions (tenant_id, created_at, id);
CREATE INDEX sessions_metadata ON laneway.sessions USING gin (metadata jsonb_path_ops);
CREATE INDEX sessions_owner ON laneway.sessions (owner_host) WHERE owner_host IS NOT NULL;

-- The conversation tree: written once. The id is a UUIDv7, so a range of ids is a span of time.
CREATE TABLE laneway.entries (
    session_id   uuid NOT NULL,
    id           uuid NOT NULL,
    tenant_id    uuid NOT NULL,
    parent_id    uuid,
    seq          bigint NOT NULL,
    created_at   bigint NOT NULL,
    type         text NOT NULL,
    custom_type  text,
    payload      text NOT NULL,
    PRIMARY KEY (session_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX entries_seq ON laneway.entries (session_id, seq);

-- What it cost: written once.
CREATE TABLE laneway.usage_ledger (
    session_id  uuid NOT NULL,
    id          uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    seq         bigint NOT NULL,
    created_at  bigint NOT NULL,
    entry_id    uuid,
    adjustment  boolean NOT NULL,
    usage       text NOT NULL,
    details     text,
    PRIMARY KEY (session_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX usage_ledger_seq ON laneway.usage_ledger (session_id, seq);

-- The branch index (§2.6): which entries lie physically in which segment. A branch_id is the
-- sequence number of the entry that opened the segment. The key begins with the entry, so that it
-- also answers which segments hold an entry.
CREATE TABLE laneway.branch_entries (
    session_id  uuid NOT NULL,
    branch_id   bigint NOT NULL,
    entry_id    uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    entry_seq   bigint NOT NULL,
    entry_type  text NOT NULL,
    PRIMARY KEY (session_id, entry_id, branch_id)
) PARTITION BY RANGE (entry_id);
CREATE INDEX branch_entries_order ON laneway.branch_entries (session_id, branch_id, entry_seq);
CREATE INDEX branch_entries_compactions ON laneway.branch_entries (session_id, branch_id, entry_seq)
    WHERE entry_type = 'compaction';

-- A segment's newest entry, and the segment that goes on below base_seq (inclusive).
CREATE TABLE laneway.branch_meta (
    session_id      uuid NOT NULL,
    branch_id       bigint NOT NULL,
    tenant_id       uuid NOT NULL,
    tip_entry_id    uuid NOT NULL,
    tip_seq         bigint NOT NULL,
    base_branch_id  bigint,
    base_seq        bigint,
    PRIMARY KEY (session_id, branch_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE UNIQUE INDEX branch_meta_tip ON laneway.branch_meta (session_id, tip_entry_id);

-- Current values. Rewritten some thirty times per run; free room on each page and an early
-- vacuum keep the rewrites on the page they started on. Keys sort by code point.
CREATE TABLE laneway.scalar_values (
    session_id  uuid NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    tenant_id   uuid NOT NULL,
    seq         bigint NOT NULL,
    value       text NOT NULL,
    PRIMARY KEY (session_id, namespace, key)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- For the sweep, which holds open_operations against the operations' own states.
CREATE INDEX scalar_values_operations ON laneway.scalar_values (key) WHERE namespace = 'pi.op.state';

-- List elements; a list dies as a whole.
CREATE TABLE laneway.list_values (
    session_id  uuid NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    seq         bigint NOT NULL,
    tenant_id   uuid NOT NULL,
    value       text NOT NULL,
    PRIMARY KEY (session_id, namespace, key, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The scheduler's table: exactly one row per open operation, kept by the commit that opens, moves
-- or ends the operation. passes counts drive passes since progress_seq, the sequence number of the
-- operation's state when the first of them began.
CREATE TABLE laneway.open_operations (
    operation_id   uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    session_id     uuid NOT NULL,
    lane           text NOT NULL,
    kind           text NOT NULL,
    accepted_at    bigint NOT NULL,
    due_at         bigint NOT NULL,
    dispatched_at  bigint,
    passes         integer NOT NULL DEFAULT 0,
    progress_seq   bigint NOT NULL DEFAULT 0,
    last_reason    text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX open_operations_due ON laneway.open_operations (tenant_id, due_at);
CREATE INDEX open_operations_soonest ON laneway.open_operations (due_at);
CREATE INDEX open_operations_dispatched ON laneway.open_operations (tenant_id, dispatched_at)
    WHERE dispatched_at IS NOT NULL;
CREATE INDEX open_operations_session ON laneway.open_operations (session_id);

-- Receipts, for ever. status is open or done; outcome, error and result come with done.
CREATE TABLE laneway.operations (
    id           uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL,
    session_id   uuid NOT NULL,
    lane         text NOT NULL,
    kind         text NOT NULL,
    status       text NOT NULL,
    outcome      text,
    error        text,
    result       text,
    accepted_at  bigint NOT NULL,
    finished_at  bigint
) WITH (fillfactor = 80);
CREATE INDEX operations_listing ON laneway.operations (tenant_id, accepted_at, id);
CREATE INDEX operations_session ON laneway.operations (session_id, lane, accepted_at);

-- Answers to requests that carried an Idempotency-Key. response is null while the first request
-- is still being answered.
CREATE TABLE laneway.idempotency_keys (
    tenant_id    uuid NOT NULL,
    key          text NOT NULL,
    fingerprint  text NOT NULL,
    status       integer,
    response     text,
    created_at   bigint NOT NULL,
    expires_at   bigint NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_expiry ON laneway.idempotency_keys (expires_at);

-- The partitions that take what no dated partition covers. They stay nearly empty and are never
-- retired.
CREATE TABLE laneway.entries_default PARTITION OF laneway.entries DEFAULT;
CREATE TABLE laneway.usage_ledger_default PARTITION OF laneway.usage_ledger DEFAULT;
CREATE TABLE laneway.branch_entries_default PARTITION OF laneway.branch_entries DEFAULT;
