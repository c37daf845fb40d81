/*
 * The hosting protocol: who drives an operation, and that somebody always will.
 *
 * One session with two lanes, an operation on each; two hosts that claim the session, drive what is
 * due, release it, drain, stop, lose their lease connection or die. docs/hosting_model.md says what
 * each part stands for and which code it mirrors. Every step below is one transaction, one message
 * or one event of a process; between any two steps anything else may happen.
 *
 * Guards, each taken away by a macro: NO_FENCE, NO_ROW_IN_TX, NO_IDENTITY_LOCK, NO_SECOND_DISPATCH,
 * NO_RELEASE_ON_DRAIN. Other ways to go wrong: EDGE_TRIGGERED, RELEASE_ERROR_IGNORED,
 * CLAIM_ANSWER_DROPPED, BURIAL_KEEPS_FENCE, WAKE_BEHIND_STATE, ACCEPTS_ANEW. NO_SWEEP leaves the
 * sweep out; NO_CLAIMS leaves out every assertion but the one about the end, BLIND_TO_FENCE the one about the
 * fence, to see what happens next.
 */

#ifndef DEATHS
#define DEATHS 3   /* kills, stops, cut connections and lost answers together */
#endif
#ifndef DRAINS
#define DRAINS 1
#endif

#define HOSTS 2
#define LANES 2
#define SLOT(h, l) ((h) * LANES + (l))
#define OTHER(h) (1 - (h))
#define NOBODY 7
#define DEAD_HOST 6   /* the recorded owner is an incarnation that ended and was not buried yet */

/* An operation as its state in the database says. */
#define NOT_ACCEPTED 0
#define READY 1
#define PENDING 2     /* the intent to run the effect is committed */
#define WAITING 3     /* settled as a failure worth another try, not before an instant */
#define DONE 4

/* The same in an owner's memory, where PENDING has two forms. */
#define ADMITTED 2    /* this pass committed the intent and has yet to run the effect */
#define EFFECTED 5    /* the effect ran in this pass, or may have run before the claim */

/* A process. */
#define UP 0
#define STOPPED 1     /* SIGSTOP: does nothing, keeps its connections, may come back */
#define DOWN 2

/* What a process believes of the session. */
#define NOT_MINE 0
#define COMMAND 1     /* as an API host: for one command, driving nothing */
#define DRIVING 2     /* as a worker, for a job or to accept: answering for everything that is due */
#define RELEASING 3
#define FENCED 4      /* as one of the above, but the fence has moved on and it does not know yet */

/* A commit on its way. */
#define NOTHING 0
#define ACCEPT 1
#define INTENT 2
#define SETTLE 3
#define TERMINAL 4
#define CANCEL 5

/* The database. */
byte st[LANES];
bit row[LANES];          /* the operation's row in open_operations */
bit due[LANES];
bit soon[LANES];         /* a wait so short that the owner keeps the session, with a timer */
bit job[LANES];          /* a queued drive job */
byte lock = NOBODY;      /* whose lease connection holds the session's advisory lock */
byte owner = NOBODY;     /* sessions.owner_host */
bit owner_drives;        /* that host's role is worker */

/* Processes. */
byte up[HOSTS];
bit connected[HOSTS];    /* the lease connection, and with it the identity lock */
byte own[HOSTS];
bit draining[HOSTS];
byte mem[HOSTS * LANES];
byte fly[HOSTS * LANES];

/* Only the checker knows these. */
bit ran[LANES];          /* the effect, which is never safe to run twice */
byte mishaps_left = DEATHS;
byte drains_left = DRAINS;
bit calm;                /* no mishap will happen any more */

#ifdef NO_FENCE
bit late[HOSTS * LANES]; /* the commit carries a fence that the session has left behind */
bit stale[HOSTS];        /* so does what this host will send */
#define STALE(h) stale[h]
#else
#define STALE(h) (own[h] == FENCED)
#endif

#ifdef BURIAL_KEEPS_FENCE
bit buried;              /* the last owner was declared dead and nobody claimed since */
#endif

#ifdef NO_SECOND_DISPATCH
bit dispatched[LANES];
#define DISPATCHABLE(l) !dispatched[l]
#define SET_DISPATCHED(l, b) dispatched[l] = b
#else
/* A row that was dispatched is dispatched again after a while, so it matters only whether a job is
 * queued: an operation has at most one. */
#define DISPATCHABLE(l) !job[l]
#define SET_DISPATCHED(l, b) skip
#endif

#ifdef EDGE_TRIGGERED
bit event[LANES];        /* somebody told the owner that the lane is due */
#define CALLED(l) event[l]
#define CALL(l) event[l] = 1
#define HEARD(l) event[l] = 0
#define AT_EASE(l) (!event[l] && !soon[l])
#else
#define CALLED(l) due[l]
#define CALL(l) skip
#define HEARD(l) skip
#define AT_EASE(l) (!due[l] && !soon[l])
#endif

#ifdef NO_ROW_IN_TX
bit owes_row[HOSTS * LANES];
#endif

#ifdef WAKE_BEHIND_STATE
bit woken[LANES];        /* the row says now; the state, which the owner goes by, says later */
#define ROW_DUE(l) (due[l] || woken[l])
#define SET_WOKEN(l, b) woken[l] = b
#else
#define ROW_DUE(l) due[l]
#define SET_WOKEN(l, b) skip
#endif

/* A line for each step of a counter-example. */
#define SAY(h, l, what) printf("  host %d, lane %d: ", h, l); printf(what); printf("\n")
#define SAY_HOST(h, what) printf("  host %d: ", h); printf(what); printf("\n")
#define SAY_LANE(l, what) printf("  lane %d: ", l); printf(what); printf("\n")

#ifdef NO_CLAIMS
#define CLAIM(c) skip
#else
#define CLAIM(c) assert(c)
#endif

#define OPEN(l) (st[l] != NOT_ACCEPTED && st[l] != DONE)
#define ALIVE(h) (up[h] == UP && connected[h])
#define SOMEBODY (ALIVE(0) || ALIVE(1))
#define WAITS_FOR_DRIVE(l) (row[l] && ROW_DUE(l) && !(owner != NOBODY && owner_drives))

/* I3: an open operation has its one row, any other has none.
 * I1, as far as one state can show it: the live host that is recorded as owner does hold the session,
 * or is about to give it back. */
#define RECORD_IS_TRUE(h) (owner != (h) || own[h] != NOT_MINE)
inline check() {
    CLAIM(OPEN(0) == row[0]);
    CLAIM(OPEN(1) == row[1]);
    CLAIM(RECORD_IS_TRUE(0));
    CLAIM(RECORD_IS_TRUE(1))
}

inline forget(h) {
    own[h] = NOT_MINE;
    mem[SLOT(h, 0)] = NOT_ACCEPTED;
    mem[SLOT(h, 1)] = NOT_ACCEPTED;
#ifdef NO_FENCE
    stale[h] = 0
#endif
}

/* The session's fence moves past whatever this host's tenure sent or will send. With the fence,
 * all of that will be refused, so of the tenure only effects are left. */
inline outdate(h) {
#ifdef NO_FENCE
    late[SLOT(h, 0)] = (fly[SLOT(h, 0)] != NOTHING);
    late[SLOT(h, 1)] = (fly[SLOT(h, 1)] != NOTHING);
    stale[h] = (own[h] != NOT_MINE);
#else
    fly[SLOT(h, 0)] = NOTHING;
    fly[SLOT(h, 1)] = NOTHING;
    mem[SLOT(h, 0)] = (mem[SLOT(h, 0)] == ADMITTED -> ADMITTED : NOT_ACCEPTED);
    mem[SLOT(h, 1)] = (mem[SLOT(h, 1)] == ADMITTED -> ADMITTED : NOT_ACCEPTED);
    own[h] = (own[h] == NOT_MINE -> NOT_MINE : FENCED)
#endif
}

inline recall(h, l) {
    mem[SLOT(h, l)] = (st[l] == PENDING -> EFFECTED : st[l]);
#ifdef EDGE_TRIGGERED
    event[l] = due[l]
#endif
}

/* Lock, fence and owner in one call, and what the database says of both lanes with it. */
inline claim(h, role) {
    outdate(0);
    outdate(1);
    lock = h;
    owner = h;
    owner_drives = (role == DRIVING);
    own[h] = role;
#ifdef NO_FENCE
    stale[h] = 0;
#endif
#ifdef BURIAL_KEEPS_FENCE
    buried = 0;
#endif
    recall(h, 0);
    recall(h, 1);
    check()
}

inline unlock(h) {
    owner = NOBODY;
    owner_drives = 0;
    lock = NOBODY
}

/* The lease connection ends; the server frees its locks. */
inline disconnect(h) {
    connected[h] = 0;
    if
    :: lock == h -> lock = NOBODY
    :: else
    fi;
    if
    :: owner == h -> owner = DEAD_HOST
    :: else
    fi
}

inline send(h, l, what) {
#ifdef NO_FENCE
    late[SLOT(h, l)] = stale[h];
#endif
    fly[SLOT(h, l)] = what
}

#define MEM(l) mem[SLOT(h, l)]
#define FREE(l) (fly[SLOT(h, l)] == NOTHING)
#define RUNS (up[h] == UP)
#define TAKES_JOBS (RUNS && connected[h] && !draining[h])
/* A command is executed by a host that drains as well, and by a worker that said yes just before. */
#ifdef NO_FENCE
/* Each lane of a host has one place for a commit on its way: wait until the last one arrived. */
#define MAY_EXECUTE (ALIVE(h) && own[h] == NOT_MINE && lock == NOBODY && FREE(0) && FREE(1))
#else
#define MAY_EXECUTE (ALIVE(h) && own[h] == NOT_MINE && lock == NOBODY)
#endif
#define MAY_CLAIM (MAY_EXECUTE && !draining[h])

/* Accepting again what is accepted, found by its id, sends nothing. */
#ifdef ACCEPTS_ANEW
#define KNOWN(l) false
#else
#define KNOWN(l) (MEM(l) != NOT_ACCEPTED)
#endif

/* Nothing to do on a lane, now or soon, as its owner sees it. */
#define QUIET(l) (FREE(l) && (MEM(l) == NOT_ACCEPTED || MEM(l) == DONE || \
                              (MEM(l) == WAITING && AT_EASE(l))))

/* A host that drains answers for what it still owns: it may start passes as long as it has the session,
 * which it may give back at any time. (The code starts them only beside one that runs.) */
#define STARTS_PASSES (RUNS && own[h] == DRIVING)

#define LANE_STEPS(l) \
    /* A client's command has come to the owner, or to a host that claims the session for it. */ \
    :: atomic { RUNS && own[h] == DRIVING && MEM(l) == NOT_ACCEPTED && FREE(l) -> \
           SAY(h, l, "the owner accepts"); send(h, l, ACCEPT) } \
    :: atomic { MAY_EXECUTE && (st[l] == NOT_ACCEPTED || mishaps_left > 0) -> \
           if \
           :: st[l] == NOT_ACCEPTED \
           :: else -> mishaps_left--  /* the answer got lost, or an offer comes late */ \
           fi; \
           if \
           :: SAY(h, l, "claims as an API host, to accept"); claim(h, COMMAND) \
           :: SAY(h, l, "claims as a worker, to accept"); claim(h, DRIVING) \
           fi; \
           if \
           :: KNOWN(l) -> SAY(h, l, "finds it accepted") \
           :: else -> send(h, l, ACCEPT) \
           fi } \
    :: atomic { RUNS && own[h] == DRIVING && MEM(l) == WAITING && !due[l] && FREE(l) -> \
           SAY(h, l, "the owner cancels"); send(h, l, CANCEL) } \
    :: atomic { MAY_EXECUTE && st[l] == WAITING && !due[l] -> \
           SAY(h, l, "claims as an API host, to cancel"); claim(h, COMMAND); send(h, l, CANCEL) } \
    /* A drive job: nothing to do; mine already; claim; handed to the owner, who may not hear it. \
     * Behind another host's command it waits. */ \
    :: atomic { TAKES_JOBS && job[l] && !OPEN(l) -> job[l] = 0 } \
    :: atomic { TAKES_JOBS && job[l] && own[h] == DRIVING -> job[l] = 0; CALL(l) } \
    :: atomic { MAY_CLAIM && job[l] && OPEN(l) -> \
           SAY(h, l, "a job claims"); job[l] = 0; claim(h, DRIVING) } \
    :: atomic { TAKES_JOBS && job[l] && lock == OTHER(h) && owner_drives -> \
           SAY(h, l, "a job hands over to the owner"); \
           job[l] = 0; \
           if \
           :: own[OTHER(h)] == DRIVING && up[OTHER(h)] == UP -> CALL(l) \
           :: else \
           fi } \
    /* A pass: intent, effect and settlement, the wait, the end. */ \
    :: atomic { STARTS_PASSES && FREE(l) && MEM(l) == READY && CALLED(l) -> \
           SAY(h, l, "sends the intent"); HEARD(l); SET_DISPATCHED(l, 0); send(h, l, INTENT) } \
    :: atomic { RUNS && (own[h] == DRIVING || own[h] == FENCED) && FREE(l) && MEM(l) == ADMITTED -> \
           SAY(h, l, "runs the effect"); \
           CLAIM(!ran[l]);  /* I4: an effect that must not be repeated is not */ \
           ran[l] = 1; \
           if \
           :: own[h] == DRIVING -> MEM(l) = EFFECTED; HEARD(l); send(h, l, SETTLE) \
           :: else -> MEM(l) = NOT_ACCEPTED \
           fi } \
    :: atomic { STARTS_PASSES && FREE(l) && MEM(l) == EFFECTED -> \
           SAY(h, l, "settles an effect of unknown fate"); HEARD(l); send(h, l, SETTLE) } \
    :: atomic { STARTS_PASSES && FREE(l) && MEM(l) == WAITING && due[l] && CALLED(l) -> \
           SAY(h, l, "sends the end"); HEARD(l); SET_DISPATCHED(l, 0); send(h, l, TERMINAL) }

proctype host(byte h) {
end:
    do
    LANE_STEPS(0)
    LANE_STEPS(1)
#ifdef NO_ROW_IN_TX
    :: atomic { RUNS && owes_row[SLOT(h, 0)] -> owes_row[SLOT(h, 0)] = 0; row[0] = OPEN(0); due[0] = row[0] }
    :: atomic { RUNS && owes_row[SLOT(h, 1)] -> owes_row[SLOT(h, 1)] = 0; row[1] = OPEN(1); due[1] = row[1] }
#endif
    /* Giving back: first in memory, then in the database. */
    :: atomic { RUNS && FREE(0) && FREE(1) &&
           (own[h] == COMMAND || (own[h] == DRIVING && (draining[h] || (QUIET(0) && QUIET(1))))) ->
           own[h] = RELEASING; mem[SLOT(h, 0)] = NOT_ACCEPTED; mem[SLOT(h, 1)] = NOT_ACCEPTED }
    :: atomic { RUNS && own[h] == RELEASING && connected[h] ->
#ifdef NO_RELEASE_ON_DRAIN
           if
           :: draining[h] -> SAY_HOST(h, "stops driving and keeps the session")
           :: else -> SAY_HOST(h, "releases"); unlock(h)
           fi;
#else
           SAY_HOST(h, "releases");
           unlock(h);
#endif
           forget(h);
           check() }
#ifdef RELEASE_ERROR_IGNORED
    /* The statement fails, the connection lives: only the lock is given back. */
    :: atomic { RUNS && own[h] == RELEASING && connected[h] && mishaps_left > 0 ->
           SAY_HOST(h, "fails to release, frees the lock");
           mishaps_left--; lock = NOBODY; forget(h); check() }
#endif
#ifdef CLAIM_ANSWER_DROPPED
    /* The claim is made, and what it says cannot be read. */
    :: atomic { MAY_CLAIM && (job[0] || job[1]) && mishaps_left > 0 ->
           SAY_HOST(h, "claims and drops the answer");
           mishaps_left--; job[0] = 0; job[1] = 0; claim(h, DRIVING); forget(h); check() }
#endif
    /* That the fence has moved, or that the connection ended, is noticed some time after it did. */
    :: atomic { RUNS && own[h] != NOT_MINE && (!connected[h] || own[h] == FENCED) ->
           SAY_HOST(h, "notices the loss"); forget(h) }
    /* A new incarnation, of the same process or of the next one. */
    :: atomic { RUNS && !connected[h] && own[h] == NOT_MINE -> SAY_HOST(h, "reconnects"); connected[h] = 1 }
    :: atomic { up[h] == DOWN -> SAY_HOST(h, "starts again"); up[h] = UP; connected[h] = 1 }
    od
}

/* The database applies a commit. */
inline apply(h, l) {
    SAY(h, l, "its commit arrives");
#if defined(NO_FENCE) && !defined(BLIND_TO_FENCE)
    CLAIM(!late[SLOT(h, l)]);      /* I2: nobody has claimed the session since */
#endif
#ifdef BURIAL_KEEPS_FENCE
    CLAIM(!buried);                /* I2: nor was its sender declared dead */
#endif
    if
    :: fly[SLOT(h, l)] == ACCEPT ->
        CLAIM(st[l] == NOT_ACCEPTED);   /* I4: nothing is accepted twice */
        st[l] = READY;
#ifdef NO_ROW_IN_TX
        owes_row[SLOT(h, l)] = (up[h] != DOWN)
#else
        row[l] = 1; due[l] = 1
#endif
    :: fly[SLOT(h, l)] == INTENT ->
        CLAIM(st[l] == READY);
        st[l] = PENDING
    :: fly[SLOT(h, l)] == SETTLE ->
        CLAIM(st[l] == PENDING);   /* I4: nothing is settled twice */
        st[l] = WAITING; due[l] = 0; SET_DISPATCHED(l, 0);
        if
        :: soon[l] = 1
        :: soon[l] = 0
        fi
    :: fly[SLOT(h, l)] == TERMINAL ->
        CLAIM(st[l] == WAITING && due[l]);
        st[l] = DONE; row[l] = 0; due[l] = 0; soon[l] = 0; SET_DISPATCHED(l, 0); SET_WOKEN(l, 0)
    :: fly[SLOT(h, l)] == CANCEL ->
        CLAIM(st[l] == WAITING);
        due[l] = 1; soon[l] = 0; SET_DISPATCHED(l, 0)
    fi;
    if
    :: own[h] != NOT_MINE && !STALE(h) ->
        mem[SLOT(h, l)] = st[l];   /* PENDING reads as ADMITTED: it is this pass's own intent */
        if
        :: fly[SLOT(h, l)] == ACCEPT || fly[SLOT(h, l)] == CANCEL -> CALL(l)
        :: else
        fi
    :: else
    fi;
    fly[SLOT(h, l)] = NOTHING;
#ifdef NO_FENCE
    late[SLOT(h, l)] = 0;
#endif
    check()
}

/* Commits on their way; the sender may be gone by the time they arrive. */
active proctype wire() {
end:
    do
    :: atomic { fly[0] != NOTHING -> apply(0, 0) }
    :: atomic { fly[1] != NOTHING -> apply(0, 1) }
    :: atomic { fly[2] != NOTHING -> apply(1, 0) }
    :: atomic { fly[3] != NOTHING -> apply(1, 1) }
    od
}

active proctype dispatcher() {
end:
    do
    :: atomic { SOMEBODY && WAITS_FOR_DRIVE(0) && DISPATCHABLE(0) ->
           SAY_LANE(0, "dispatched"); SET_DISPATCHED(0, 1); job[0] = 1 }
    :: atomic { SOMEBODY && WAITS_FOR_DRIVE(1) && DISPATCHABLE(1) ->
           SAY_LANE(1, "dispatched"); SET_DISPATCHED(1, 1); job[1] = 1 }
    od
}

/* Cutting off the silent and burying the dead: any live host does it. */
active proctype undertaker() {
end:
    do
    :: atomic { ALIVE(1) && up[0] == STOPPED && connected[0] -> SAY_HOST(0, "is cut off"); disconnect(0) }
    :: atomic { ALIVE(0) && up[1] == STOPPED && connected[1] -> SAY_HOST(1, "is cut off"); disconnect(1) }
#ifndef NO_IDENTITY_LOCK
    :: atomic { SOMEBODY && owner == DEAD_HOST ->
           printf("  the dead owner is buried\n");
           owner = NOBODY; owner_drives = 0;
           SET_DISPATCHED(0, 0); SET_DISPATCHED(1, 0);
#ifdef BURIAL_KEEPS_FENCE
           buried = 1;
#else
           outdate(0); outdate(1);
#endif
           check() }
#endif
    od
}

inline ring(l) {
    SAY_LANE(l, "the wait is over");
    SET_WOKEN(l, 0);
    due[l] = 1;
#ifdef EDGE_TRIGGERED
    if
    :: owner < HOSTS && up[owner] == UP && own[owner] == DRIVING -> event[l] = 1; soon[l] = 0
    :: else   /* nobody hears the timer; a stopped owner goes on believing in it */
    fi
#else
    soon[l] = 0
#endif
}

active proctype clock() {
end:
    do
    :: atomic { st[0] == WAITING && row[0] && !due[0] -> ring(0) }
    :: atomic { st[1] == WAITING && row[1] && !due[1] -> ring(1) }
#ifdef WAKE_BEHIND_STATE
    :: atomic { st[0] == WAITING && row[0] && !due[0] && !woken[0] -> SAY_LANE(0, "its row is woken"); woken[0] = 1 }
#endif
    od
}

#ifndef NO_SWEEP
/* Finds nothing in a healthy system. */
active proctype sweep() {
end:
    do
    :: atomic { OPEN(0) && !row[0] -> SAY_LANE(0, "the sweep adds its row"); CLAIM(false); row[0] = 1; due[0] = 1 }
    :: atomic { OPEN(1) && !row[1] -> SAY_LANE(1, "the sweep adds its row"); CLAIM(false); row[1] = 1; due[1] = 1 }
    :: atomic { !OPEN(0) && row[0] -> CLAIM(false); row[0] = 0; due[0] = 0 }
    :: atomic { !OPEN(1) && row[1] -> CLAIM(false); row[1] = 0; due[1] = 0 }
    od
}
#endif

/* What was sent may be lost with its sender, or arrive after its death. */
inline lose(h, l) {
    if
    :: fly[SLOT(h, l)] != NOTHING -> fly[SLOT(h, l)] = NOTHING
    :: true
    fi
}

/* A job that it had taken ends with it. */
inline lose_job(l) {
    if
    :: job[l] -> job[l] = 0
    :: true
    fi
}

inline kill(h) {
    SAY_HOST(h, "is killed");
    disconnect(h);
    up[h] = DOWN;
    draining[h] = 0;
#ifdef NO_ROW_IN_TX
    owes_row[SLOT(h, 0)] = 0; owes_row[SLOT(h, 1)] = 0;
#endif
    forget(h);
    lose(h, 0);
    lose(h, 1);
    lose_job(0);
    lose_job(1)
}

/* A fleet of two bears one host that is away for good: stopped, or drained and not replaced. */
#define PRESENT(h) (up[h] != STOPPED && !draining[h])

#define MISHAPS(h) \
    :: atomic { !calm && mishaps_left > 0 && up[h] != DOWN -> mishaps_left--; kill(h) } \
    :: atomic { !calm && mishaps_left > 0 && ALIVE(h) -> \
           SAY_HOST(h, "loses its lease connection"); mishaps_left--; disconnect(h) } \
    :: atomic { !calm && mishaps_left > 0 && up[h] == UP && PRESENT(OTHER(h)) -> \
           SAY_HOST(h, "is stopped"); mishaps_left--; up[h] = STOPPED } \
    :: atomic { !calm && up[h] == STOPPED -> SAY_HOST(h, "goes on"); up[h] = UP } \
    :: atomic { !calm && drains_left > 0 && ALIVE(h) && !draining[h] && PRESENT(OTHER(h)) -> \
           SAY_HOST(h, "drains"); drains_left--; draining[h] = 1 }

active proctype mishaps() {
end:
    do
    MISHAPS(0)
    MISHAPS(1)
    :: atomic { !calm -> calm = 1; mishaps_left = 0; drains_left = 0 }
    od
}

init {
    atomic {
        connected[0] = 1;
        connected[1] = 1;
        run host(0);
        run host(1)
    }
end:
    /* I1: when nothing can happen any more, what was accepted has ended. That this point is always
     * reached is the other half: no state is ever visited twice in a run (checked with NP). */
    timeout -> assert(!OPEN(0) && !OPEN(1))
}
