//! Each rule of the protocol is left out in turn, and the model has to find what goes wrong then. The first sixteen are
//! of the design; the others are rules that the model has asked for.

use super::state::Budget;
use super::{CALM, NO_RESURRECTION, NOT_LOST, ONE_RUN, Setup, breaks};

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A run that was stopped may be started later.
    NoTombstone,
    /// A second try, or a recreated sandbox, has the same run id.
    SameRunAgain,
    /// Objects made by hand are started first and assigned then.
    StartBeforeStatus,
    /// Status follows the annotation although it has an assignment.
    AnnotationOverStatus,
    /// A controller allocates before it has heard the agents.
    NoInventoryFirst,
    /// Agents take calls of former leaders.
    NoTerm,
    /// Agents take calls that were meant for their former life.
    NoIncarnation,
    /// Agents out of contact go on.
    NoFence,
    /// An agent counts its contact from when it was called, not from its answer that was acknowledged.
    LeaseByReceipt,
    /// An agent that is in contact again lets its runs go on.
    ThawOnContact,
    /// A tombstone does not say whether the run was deleted or only given up.
    TombstoneWithoutWhy,
    /// A call without an answer counts as refused.
    DoubtIsRefusal,
    /// A delete is acknowledged while a create is under way.
    AckDeleteInDoubt,
    /// The janitor ends what has no object.
    JanitorGuesses,
    /// A Pod that is not in the API is dead.
    GoneIsDead,
    /// A new worker knows nothing of what runs.
    AdoptNothing,
    /// An agent out of contact takes starts.
    StartsInSilence,
    /// An agent out of contact lets runs go on when told to.
    ThawsInSilence,
    /// Nobody freezes while the worker is down.
    FenceDiesWithWorker,
    /// A new worker counts its contact from when it began.
    ContactFromAdoption,
    /// A new worker does not know the term.
    TermDiesWithWorker,
    /// A new worker does not know what was stopped.
    TombsDieWithWorker,
    /// An inventory without the run is taken for its end, though a start may be under way.
    AbsenceIsDeath,
    /// A name is used again while nobody knows whether its last run was stopped.
    AbandonedDoesNotBlock,
    /// The contact is renewed although a run was given up there.
    AckWhileAbandoned,
    /// Annotation and finalizer go while a create is under way.
    BirthIsForgotten,
    /// A name is used again while the log has still to delete it.
    LogDoesNotBlock,
    /// Annotation and finalizer go before the agent knows of the object.
    AnnotationNeedNotBeConfirmed,
    /// After a refusal the run is left without being stopped, though an earlier start may be under way.
    RefusalIsFinal,
    /// A delete of an unknown name is acknowledged before every agent was heard.
    UnheardIsAbsent,
    /// A delete of an unknown name is acknowledged while a create is under way.
    AbsentIsDeleted,
    /// Runs whose object is not confirmed are frozen no sooner than others.
    SlowFenceForOrders,
    /// A controller that does not lead any more keeps up the contact.
    DeposedSyncs,
    /// It also removes annotations and finalizers.
    DeposedWrites,
    /// A run of FAST whose object has no status yet counts as not started.
    StartedIsBound,
    /// A finalizer goes while another agent may offer a run of the name for adoption.
    OthersOutliveDelete,
    /// A finalizer goes while the log would still make the object.
    DoneIsNotWaitedFor,
    /// An object is reconciled while a create or a delete of the name is pending.
    PendingBesideObject,
    /// The right run is started while another one of the name is known.
    StartsBesideOthers,
    /// A run that somebody has tried to stop is adopted.
    StoppedIsAdopted,
}

const FAST: Budget = Budget { fast: 1, ..CALM };
const AGAIN: Budget = Budget { fast: 2, ..CALM };
const LOST: Budget = Budget { fast: 1, lost: 1, ..CALM };
const STRONG: Budget = Budget { strong: 1, ..CALM };
const OBJECT: Budget = Budget { objects: 1, ..CALM };

fn manual(budget: Budget) -> Setup {
    Setup::new(2, budget)
}

fn auto(budget: Budget) -> Setup {
    Setup::new(2, budget).auto()
}

fn wal(budget: Budget) -> Setup {
    Setup::new(2, budget).wal()
}

macro_rules! needed {
    ($($test:ident: $flaw:ident breaks $property:ident in $setup:expr;)*) => {
        $(#[test]
        fn $test() {
            breaks($setup.without(Flaw::$flaw), $property);
        })*
    };
}

needed! {
    tombstones: NoTombstone breaks ONE_RUN in manual(LOST);
    new_run_ids: SameRunAgain breaks ONE_RUN in auto(Budget { ticks: 2, ..OBJECT });
    status_before_start: StartBeforeStatus breaks ONE_RUN in manual(Budget { crashes: 1, ..OBJECT });
    status_over_annotation: AnnotationOverStatus breaks NOT_LOST in auto(Budget { keepers: 1, ..FAST });
    inventory_first: NoInventoryFirst breaks ONE_RUN in manual(Budget { crashes: 1, ..AGAIN });
    terms: NoTerm breaks ONE_RUN in manual(Budget { lost: 1, crashes: 1, ..AGAIN });
    incarnations: NoIncarnation breaks ONE_RUN in manual(Budget { keepers: 1, ..LOST });
    fence: NoFence breaks ONE_RUN in auto(Budget { ticks: 2, ..OBJECT });
    lease_by_answers: LeaseByReceipt breaks ONE_RUN in auto(Budget { cuts: 1, ticks: 3, ..OBJECT });
    thaw_by_controller: ThawOnContact breaks ONE_RUN in auto(Budget { ticks: 2, crashes: 1, ..OBJECT });
    why_in_tombstones: TombstoneWithoutWhy breaks NOT_LOST in manual(Budget { full: 1, crashes: 1, ..STRONG });
    doubt: DoubtIsRefusal breaks ONE_RUN in manual(LOST);
    delete_in_doubt: AckDeleteInDoubt breaks NO_RESURRECTION in manual(Budget { deletes: 1, keepers: 1, ..LOST });
    janitor_proves: JanitorGuesses breaks NOT_LOST in manual(FAST);
    gone_is_not_dead: GoneIsDead breaks ONE_RUN in auto(Budget { pods: 1, ticks: 1, ..OBJECT });
    adoption: AdoptNothing breaks ONE_RUN in auto(Budget { workers: 1, ..OBJECT });

    no_start_in_silence: StartsInSilence breaks ONE_RUN in auto(Budget { ticks: 2, lost: 1, ..OBJECT });
    no_thaw_in_silence: ThawsInSilence breaks ONE_RUN in auto(Budget { ticks: 2, lost: 1, ..OBJECT });
    fence_outlives_worker: FenceDiesWithWorker breaks ONE_RUN in auto(Budget { workers: 1, ticks: 2, ..OBJECT });
    contact_outlives_worker: ContactFromAdoption breaks ONE_RUN in auto(Budget { workers: 1, ticks: 2, ..OBJECT });
    term_outlives_worker: TermDiesWithWorker breaks ONE_RUN
        in manual(Budget { lost: 1, crashes: 1, workers: 1, ..AGAIN });
    tombstones_outlive_worker: TombsDieWithWorker breaks ONE_RUN in manual(Budget { workers: 1, ..LOST });
    absence_is_no_death: AbsenceIsDeath breaks ONE_RUN
        in manual(Budget { objects: 2, deletes: 1, lost: 1, ..CALM });
    doubt_blocks_the_name: AbandonedDoesNotBlock breaks ONE_RUN in manual(Budget { lost: 2, ..AGAIN });
    no_contact_while_given_up: AckWhileAbandoned breaks ONE_RUN in auto(Budget { ticks: 2, lost: 1, ..OBJECT });
    birth: BirthIsForgotten breaks NO_RESURRECTION in manual(Budget { strong: 2, lost: 2, deletes: 1, ..CALM });
    log_blocks_the_name: LogDoesNotBlock breaks NOT_LOST in wal(Budget { deletes: 1, lost: 1, ..AGAIN });
    agent_knows_the_object: AnnotationNeedNotBeConfirmed breaks NO_RESURRECTION
        in manual(Budget { deletes: 1, crashes: 1, ticks: 2, ..FAST });
    refusal_after_doubt: RefusalIsFinal breaks ONE_RUN in manual(Budget { lost: 1, full: 1, ..OBJECT });
    all_agents_were_heard: UnheardIsAbsent breaks NO_RESURRECTION
        in manual(Budget { deletes: 1, crashes: 1, ticks: 2, ..FAST });
    no_create_under_way: AbsentIsDeleted breaks NO_RESURRECTION
        in manual(Budget { deletes: 1, lost: 1, ..STRONG });
    orders_freeze_early: SlowFenceForOrders breaks ONE_RUN in manual(Budget { crashes: 1, ticks: 2, ..AGAIN });
    only_leaders_sync: DeposedSyncs breaks ONE_RUN in auto(Budget { stale: 1, ticks: 2, ..OBJECT });
    only_leaders_remove: DeposedWrites breaks NO_RESURRECTION
        in manual(Budget { strong: 2, deletes: 1, lost: 2, stale: 1, ..CALM });
    started_is_not_bound: StartedIsBound breaks NOT_LOST in manual(Budget { keepers: 1, ..FAST });
    no_other_to_adopt: OthersOutliveDelete breaks NO_RESURRECTION
        in manual(Budget { deletes: 1, ticks: 2, crashes: 1, ..AGAIN });
    done_before_the_end: DoneIsNotWaitedFor breaks NO_RESURRECTION
        in wal(Budget { fast: 1, deletes: 1, lost: 2, keepers: 1, ..CALM });
    pending_first: PendingBesideObject breaks NO_RESURRECTION in wal(Budget { deletes: 1, resets: 1, ..LOST });
    one_after_the_other: StartsBesideOthers breaks ONE_RUN in manual(Budget { strong: 1, crashes: 1, ..LOST });
    stopped_is_not_adopted: StoppedIsAdopted breaks NOT_LOST
        in manual(Budget { ticks: 2, lost: 1, crashes: 1, ..AGAIN });
}
