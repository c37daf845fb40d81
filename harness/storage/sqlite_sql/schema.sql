-- One file holds one session. Entries and ledger rows are inserted once and never touched again;
-- what changes is values, lists, the branch index, the session row and the lease.

-- The conversation tree. `payload` is the entry's JSON without its placement.
CREATE TABLE entries (
    id TEXT PRIMARY KEY NOT NULL,
    parent_id TEXT,
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    custom_type TEXT,
    timestamp INTEGER NOT NULL,
    payload TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX ix_entry_parent ON entries (parent_id);
CREATE INDEX ix_entry_seq ON entries (seq, type);

-- Replaceable values: the current JSON at each address.
CREATE TABLE scalar_values (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

-- Append-only lists: one row per element, in the order of the writes that made them.
CREATE TABLE list_values (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (namespace, key, seq)
) WITHOUT ROWID;

-- What every attempt cost.
CREATE TABLE usage_ledger (
    id TEXT PRIMARY KEY NOT NULL,
    seq INTEGER NOT NULL,
    entry_id TEXT,
    adjustment INTEGER NOT NULL,
    usage TEXT NOT NULL,
    details TEXT
) WITHOUT ROWID;
CREATE INDEX ix_usage_seq ON usage_ledger (seq);

-- The branch index, rebuildable from entries. A branch's own rows lie above its base; below that
-- it continues in its base branch. A branch is named after the entry that started it.
CREATE TABLE branch_entries (
    branch_id TEXT NOT NULL,
    entry_id TEXT NOT NULL,
    entry_seq INTEGER NOT NULL,
    entry_type TEXT NOT NULL,
    PRIMARY KEY (branch_id, entry_id)
) WITHOUT ROWID;
CREATE INDEX ix_be_seq ON branch_entries (branch_id, entry_seq, entry_id, entry_type);
CREATE INDEX ix_be_type ON branch_entries (branch_id, entry_type, entry_seq, entry_id);
CREATE INDEX ix_be_entry ON branch_entries (entry_id);
CREATE TABLE branch_meta (
    branch_id TEXT PRIMARY KEY NOT NULL,
    tip_entry_id TEXT NOT NULL,
    tip_seq INTEGER NOT NULL,
    base_branch_id TEXT,
    base_seq INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX ix_bm_tip ON branch_meta (tip_entry_id);

-- Exactly one row: the session itself, its totals and its next sequence number.
CREATE TABLE session (
    id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    cwd TEXT,
    parent_session_id TEXT,
    legacy_parent_session_path TEXT,
    storage_version INTEGER NOT NULL,
    store_generation INTEGER NOT NULL,
    metadata TEXT,
    message_count INTEGER NOT NULL,
    usage_payload TEXT NOT NULL,
    next_seq INTEGER NOT NULL
);

-- At most one row: who may write, until when. `fence` grows with every change of hands.
CREATE TABLE writer_lease (
    owner_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
);
