//! The cases, by what they are about. The names of the seed's lists, and what the public system has got wrong, are in
//! docs/SPECIFICATION.md.

use std::pin::Pin;

/// One case, on whichever server the stage is set up on.
#[allow(dead_code, reason = "for the suite on kube-apiserver; here each is a test")]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

macro_rules! cases {
    ($($module:ident: $($name:ident),* $(,)?;)*) => {
        $(pub(crate) mod $module;)*

        #[allow(dead_code, reason = "for the suite on kube-apiserver; here each is a test")]
        pub(crate) fn all() -> Vec<Case> {
            vec![$($(Case {
                name: concat!(stringify!($module), "::", stringify!($name)),
                run: || Box::pin($module::$name()),
            }),*),*]
        }

        mod embedded {
            $(mod $module {
                $(#[tokio::test]
                async fn $name() {
                    Box::pin(crate::cases::$module::$name()).await;
                })*
            })*
        }
    };
}

cases! {
    annotations: fast_mode_sets_allocation_annotation, strong_mode_sets_allocation_annotation,
        move_allocation_to_status, clear_invalid_allocation_annotation, forged_allocation_annotation,
        allocation_already_in_status, foreign_annotations_and_labels_survive_everything;
    controllers: an_object_comes_to_run_and_goes_without_a_trace,
        deleted_on_the_fast_path_it_is_gone_with_or_without_an_object,
        the_same_request_gets_the_same_sandbox, a_full_pool_says_when_to_ask_again,
        only_who_has_the_token_gets_in_and_nonsense_is_refused,
        created_and_reconciled_at_once_it_is_allocated_once;
    deaths: fast_after_each_effect, fast_after_each_effect_with_the_log,
        fast_after_each_effect_of_controller_and_agent_with_the_log, strong_after_each_effect,
        strong_after_each_effect_of_controller_and_agent, strong_after_each_effect_with_the_log;
    faults: manual_waits_for_somebody, what_is_recreated_runs_elsewhere_and_the_old_run_ends,
        heard_again_it_goes_on, every_end_frees_the_slot, a_dead_agent_s_sandboxes_come_back_only_if_asked_to,
        the_same_request_hears_that_its_sandbox_is_lost,
        a_refusal_tries_the_next_and_doubt_tries_nothing, an_object_whose_start_is_in_doubt_is_started_once,
        while_the_api_is_down_fast_creates_go_on_and_objects_follow,
        a_new_controller_makes_the_objects_that_are_missing,
        a_late_create_does_not_bring_back_what_was_deleted,
        an_agent_that_takes_its_time_keeps_nobody_waiting;
    logged: an_acknowledged_create_outlives_controller_and_agent,
        what_comes_back_by_itself_runs_again_after_both_have_died,
        a_create_that_was_logged_and_not_started_is_settled,
        a_create_that_was_started_and_not_logged_is_adopted_or_gone,
        a_full_disk_refuses_fast_creates_and_leaves_nothing,
        a_delete_without_an_object_outlives_controller_and_agent,
        a_delete_in_doubt_takes_the_object_along,
        an_open_deletion_blocks_the_name, a_finalizer_waits_until_the_log_has_let_go;
    pools: a_create_is_refused_only_at_the_most_agents_and_empty_ones_go, objects_that_wait_have_the_pool_grow,
        a_sandbox_whose_pool_is_missing_waits_for_it, a_watch_tells_of_every_change_and_ends_with_the_sandbox,
        logs_and_commands_reach_the_run, a_client_that_does_not_wait_leaves_nothing_behind,
        agents_go_with_their_pool_when_they_are_empty;
    predecessor: recovery_does_not_bind_to_the_dead_agent, the_recovery_timeout_is_honoured,
        deleting_what_nobody_knows_harms_nobody, scaling_down_spares_agents_in_use,
        deleting_a_failed_sandbox_frees_its_slot, a_failed_strong_create_frees_its_slot_once;
    updates: a_changed_policy_decides_what_a_dead_agent_means, a_longer_recovery_timeout_reaches_the_agent,
        a_shorter_recovery_timeout_is_refused;
}
