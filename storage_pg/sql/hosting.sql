-- What the session host and its jobs ask; the functions are made by the migrations.

-- name: whereabouts
SELECT next_seq, agent, host_id::text, role, url FROM laneway.whereabouts(%s::uuid, %s::uuid)

-- name: receipt
SELECT session_id::text, lane, kind, status, outcome, error, result, accepted_at, finished_at
FROM laneway.receipt(%s::uuid, %s::uuid)

-- name: due_of_session
SELECT operation_id::text, due_at FROM laneway.due_of_session(%s::uuid, %s::uuid)

-- name: wake_operation
SELECT laneway.wake_operation(%s::uuid, %s::uuid, %s::uuid, %s::bigint)

-- name: agent_profile
SELECT version, profile FROM laneway.agent_profile(%s::uuid, %s::text)

-- name: hint
-- Tells every listening process, in one transaction that does nothing else and does not wait for the
-- disk. Payloads are ids.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT pg_notify('laneway', payload) FROM relaxed, unnest(%s::text[]) AS payload

-- name: dispatch_jobs
-- Chooses what waits for a drive and queues a job for each, in one transaction, but for the first
-- `keep`, which the caller drives itself. An operation whose job is still queued gets no second one.
WITH chosen AS MATERIALIZED (
    SELECT *, row_number() OVER () <= %(keep)s AS kept
    FROM laneway.dispatch_due(%(now)s, %(again_after)s, %(at_most)s, %(tenant_limit)s)
), queued AS (
    INSERT INTO public.procrastinate_jobs (queue_name, task_name, queueing_lock, args)
    SELECT %(queue)s, %(task)s, 'drive:' || c.operation_id,
           jsonb_build_object(
               'tenant_id', c.tenant_id, 'session_id', c.session_id, 'lane', c.lane,
               'operation_id', c.operation_id)
    FROM chosen AS c WHERE NOT c.kept
    ON CONFLICT DO NOTHING
)
SELECT operation_id::text, tenant_id::text, session_id::text, lane, due_at, kept FROM chosen

-- name: put_away_jobs
-- Jobs that a worker took and will not finish: its row is gone (pruned, or never there), has no recent
-- heartbeat, or the job began longer ago than any job takes. What they were for is in
-- open_operations or comes again by the clock, so they are removed.
DELETE FROM public.procrastinate_jobs AS j
WHERE j.status = 'doing' AND j.queue_name = %(queue)s
  AND (
      NOT EXISTS (
          SELECT 1 FROM public.procrastinate_workers AS w
          WHERE w.id = j.worker_id
            AND w.last_heartbeat > clock_timestamp() - make_interval(secs => %(silent)s))
      OR NOT EXISTS (
          SELECT 1 FROM public.procrastinate_events AS e
          WHERE e.job_id = j.id AND e.type = 'started'
            AND e.at > clock_timestamp() - make_interval(secs => %(longest)s))
  )
RETURNING j.id, j.task_name

-- name: queue_fetch_job
-- The queue's own statement, in a transaction that does not wait for the disk.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT j.id, j.status, j.task_name, j.priority, j.lock, j.queueing_lock, j.args, j.scheduled_at,
       j.queue_name, j.attempts, j.worker_id
FROM relaxed, public.procrastinate_fetch_job_v2(%(queues)s::varchar[], %(worker_id)s) AS j

-- name: queue_finish_job
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT public.procrastinate_finish_job_v1(%(job_id)s, %(status)s, %(delete_job)s) FROM relaxed
