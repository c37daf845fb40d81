-- The search index: a projection of the sessions of this database, which can be emptied and filled
-- again at any time. It is filled by pulling (see storage_pg.search_source), in transactions of its
-- own, so that no commit of a session waits for it.

-- How far each session is indexed. created_at and generation say which store of its entries this is
-- about; cursor is the highest entry sequence number held; stamp is what search_stamp said when
-- indexing was complete, null before; labels are the metadata it can be filtered by, and one that
-- names the fields they were taken from.
CREATE TABLE laneway.search_sessions (
    session_id  uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    created_at  bigint NOT NULL,
    generation  integer NOT NULL,
    cursor      bigint NOT NULL,
    stamp       text,
    labels      text[] NOT NULL
);
CREATE INDEX search_sessions_tenant ON laneway.search_sessions (tenant_id, session_id);
CREATE INDEX search_sessions_labels ON laneway.search_sessions USING gin (labels);

-- The searchable text of entries and its terms. Besides the text's own terms, terms holds one for
-- the tenant, @ and its id, so that the index alone finds a tenant's entries; words have no @. It is
-- partitioned like the entries it comes from, and retired with them.
CREATE TABLE laneway.search_entries (
    session_id  uuid NOT NULL,
    entry_id    uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    created_at  bigint NOT NULL,
    type        text NOT NULL,
    body        text NOT NULL,
    terms       tsvector NOT NULL,
    PRIMARY KEY (session_id, entry_id)
) PARTITION BY RANGE (entry_id);
-- Without a list of pending rows: nobody waits for indexing, and every search would read the list.
CREATE INDEX search_entries_terms ON laneway.search_entries USING gin (terms)
    WITH (fastupdate = off);
CREATE TABLE laneway.search_entries_default PARTITION OF laneway.search_entries DEFAULT;

DO $$
DECLARE
    owned text;
BEGIN
    FOREACH owned IN ARRAY ARRAY['search_sessions', 'search_entries'] LOOP
        EXECUTE format('ALTER TABLE laneway.%I ENABLE ROW LEVEL SECURITY', owned);
        EXECUTE format('ALTER TABLE laneway.%I FORCE ROW LEVEL SECURITY', owned);
        EXECUTE format(
            'CREATE POLICY tenant_only ON laneway.%I '
            'USING (tenant_id = nullif(current_setting(''laneway.tenant'', true), '''')::uuid)',
            owned
        );
        EXECUTE format(
            'CREATE POLICY owner_sees_all ON laneway.%I TO CURRENT_USER USING (true)', owned
        );
    END LOOP;
END
$$;

-- What changes whenever a session's entries or its metadata do.
CREATE FUNCTION laneway.search_stamp(session laneway.sessions) RETURNS text
LANGUAGE sql
STABLE
AS $$
    SELECT session.next_seq || ':' || session.store_generation || ':'
        || md5(session.metadata::text || coalesce(session.cwd, ''))
$$;

-- One indexer at a time works on a session, and nobody indexes what is being removed; freed at the
-- end of the transaction.
CREATE FUNCTION laneway.search_lock(for_session uuid) RETURNS void
LANGUAGE sql
AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('laneway.search:' || for_session::text, 0))
$$;

-- Forgets a session.
CREATE FUNCTION laneway.search_forget(for_session uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM laneway.search_entries WHERE session_id = for_session;
    DELETE FROM laneway.search_sessions WHERE session_id = for_session;
END
$$;

-- What is deleted, or replaced by a rewrite, cannot be found from the same transaction on.
CREATE FUNCTION laneway.search_follow() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM laneway.search_lock(OLD.id);
    PERFORM laneway.search_forget(OLD.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER search_follows_deletion AFTER DELETE ON laneway.sessions
    FOR EACH ROW EXECUTE FUNCTION laneway.search_follow();
-- Named by column: the updates that commits make do not fire it.
CREATE TRIGGER search_follows_rewrite AFTER UPDATE OF store_generation ON laneway.sessions
    FOR EACH ROW EXECUTE FUNCTION laneway.search_follow();

-- The newest entries of a tenant that match, at most `most` of them, ranked. The owner's rights let
-- the query use the index: under row security a text match may not run before the tenant is checked.
-- Here the tenant is part of the match, and checked again. want_types and want_labels may be null.
CREATE FUNCTION laneway.search_matches(
    for_tenant uuid, wanted tsquery, want_types text[], want_labels text[], most integer
) RETURNS TABLE (session_id uuid, entry_id uuid, created_at bigint, score real)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    scoped tsquery := ('''@' || for_tenant || '''')::tsquery && wanted;
BEGIN
    RETURN QUERY
    WITH newest AS MATERIALIZED (
        SELECT e.session_id, e.entry_id, e.created_at, e.terms
        FROM laneway.search_entries AS e
        WHERE e.terms @@ scoped AND e.tenant_id = for_tenant
          AND (want_types IS NULL OR e.type = ANY (want_types))
          AND (want_labels IS NULL OR EXISTS (
              SELECT 1 FROM laneway.search_sessions AS s
              WHERE s.session_id = e.session_id AND s.tenant_id = for_tenant
                AND s.labels @> want_labels))
        ORDER BY e.entry_id DESC
        LIMIT most
    )
    SELECT n.session_id, n.entry_id, n.created_at, ts_rank(n.terms, wanted, 1) FROM newest AS n;
END
$$;

-- Sessions of all tenants whose index is behind, oldest id first, after one of them.
CREATE FUNCTION laneway.search_stale(fields_label text, after_session uuid, page integer)
RETURNS TABLE (tenant_id uuid, session_id uuid)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.tenant_id, s.id
    FROM laneway.sessions AS s
    LEFT JOIN laneway.search_sessions AS x ON x.session_id = s.id
    WHERE (after_session IS NULL OR s.id > after_session)
      AND (x.session_id IS NULL OR x.stamp IS DISTINCT FROM laneway.search_stamp(s)
           OR NOT fields_label = ANY (x.labels))
    ORDER BY s.id
    LIMIT page
$$;
