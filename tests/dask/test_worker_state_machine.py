"""The worker's state machine alone: events in, states and instructions out. No cluster, no clock."""

import pytest
from distributed.utils import recursive_to_dict
from distributed.worker_state_machine import (
    AcquireReplicasEvent,
    AddKeysMsg,
    CancelComputeEvent,
    ComputeTaskEvent,
    Execute,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    FindMissingEvent,
    FreeKeysEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepFailureEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    InvalidTransition,
    LongRunningMsg,
    PauseEvent,
    RefreshWhoHasEvent,
    ReleaseWorkerDataMsg,
    RemoveReplicasEvent,
    RemoveWorkerEvent,
    RequestRefreshWhoHasMsg,
    RescheduleEvent,
    RescheduleMsg,
    RetryBusyWorkerEvent,
    RetryBusyWorkerLater,
    SecedeEvent,
    StateMachineEvent,
    StealRequestEvent,
    StealResponseMsg,
    TaskErredMsg,
    TaskFinishedMsg,
    TransitionCounterMaxExceeded,
    UnpauseEvent,
    UpdateDataEvent,
    WorkerState,
)

A, B = "127.0.0.1:1001", "127.0.0.1:1002"


@pytest.fixture
def ws():
    state = WorkerState(address="127.0.0.1:1000", validate=True, transition_counter_max=10_000)
    yield state
    state.validate_state()


def compute(key, *deps, holders=(A,), stimulus_id="compute", **kwargs):
    return ComputeTaskEvent.dummy(key, who_has={dep: list(holders) for dep in deps}, stimulus_id=stimulus_id, **kwargs)


def success(key, value=1, **kwargs):
    return ExecuteSuccessEvent.dummy(key, value, stimulus_id="success", **kwargs)


def gathered(worker, total_nbytes=1, **data):
    return GatherDepSuccessEvent(worker=worker, total_nbytes=total_nbytes, data=data, stimulus_id="gathered")


def states(ws):
    return {key: ts.state for key, ts in ws.tasks.items()}


# --- a task without dependencies -----------------------------------------------------------------------------------


def test_compute_starts_at_once(ws):
    assert ws.handle_stimulus(compute("x")) == [Execute(key="x", stimulus_id="compute")]
    assert states(ws) == {"x": "executing"}
    assert ws.executing == {ws.tasks["x"]}


def test_success_puts_the_value_in_memory(ws):
    ws.handle_stimulus(compute("x"))
    assert ws.handle_stimulus(success("x", 123)) == [TaskFinishedMsg.match(key="x", stimulus_id="success")]
    assert states(ws) == {"x": "memory"}
    assert ws.data == {"x": 123}
    assert ws.executed_count == 1
    assert not ws.executing


def test_failure_is_told(ws):
    ws.handle_stimulus(compute("x"))
    event = ExecuteFailureEvent.from_exception(ValueError("boom"), key="x", run_id=0, stimulus_id="failure")
    (message,) = ws.handle_stimulus(event)
    assert message == TaskErredMsg.match(key="x", stimulus_id="failure")
    assert "boom" in message.exception_text
    assert states(ws) == {"x": "error"}
    assert ws.data == {}


def test_a_failed_task_may_be_computed_again(ws):
    ws.handle_stimulus(compute("x"), ExecuteFailureEvent.dummy("x", stimulus_id="failure"))
    assert ws.handle_stimulus(compute("x", stimulus_id="again")) == [Execute(key="x", stimulus_id="again")]
    ws.handle_stimulus(success("x"))
    assert states(ws) == {"x": "memory"}


def test_the_threads_bound_what_runs(ws):
    ws.nthreads = 2
    instructions = ws.handle_stimulus(*(compute(f"x{i}") for i in range(5)))
    assert len([i for i in instructions if isinstance(i, Execute)]) == 2
    assert len(ws.ready) == 3
    done = next(i.key for i in instructions)
    finished, execute = ws.handle_stimulus(success(done))
    assert finished == TaskFinishedMsg.match(key=done)
    assert isinstance(execute, Execute)
    assert len(ws.ready) == 2


def test_the_lowest_priority_value_runs_first(ws):
    ws.handle_stimulus(compute("first", priority=(0,)), compute("late", priority=(5,)), compute("soon", priority=(1,)))
    instructions = ws.handle_stimulus(success("first"))
    assert [i.key for i in instructions if isinstance(i, Execute)] == ["soon"]


def test_a_task_in_memory_is_not_computed_again(ws):
    ws.handle_stimulus(compute("x"), success("x"))
    assert ws.handle_stimulus(compute("x", stimulus_id="again")) == [
        TaskFinishedMsg.match(key="x", stimulus_id="again")
    ]


def test_free_keys_forgets(ws):
    ws.handle_stimulus(compute("x"), success("x"))
    ws.handle_stimulus(FreeKeysEvent(keys=["x"], stimulus_id="free"))
    assert ws.tasks == {}
    assert ws.data == {}


def test_free_keys_of_what_is_unknown(ws):
    assert ws.handle_stimulus(FreeKeysEvent(keys=["nobody", "knows"], stimulus_id="free")) == []


@pytest.mark.parametrize("ending", [success("x"), ExecuteFailureEvent.dummy("x", stimulus_id="f")])
def test_a_freed_task_runs_to_its_end_as_cancelled(ws, ending):
    ws.handle_stimulus(compute("x"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    assert states(ws) == {"x": "cancelled"}
    assert ws.handle_stimulus(ending) == []
    assert ws.tasks == {}


def test_a_cancelled_task_that_is_wanted_again_just_goes_on(ws):
    ws.handle_stimulus(compute("x"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    assert ws.handle_stimulus(compute("x", stimulus_id="again")) == []
    assert states(ws) == {"x": "executing"}
    assert ws.handle_stimulus(success("x")) == [TaskFinishedMsg.match(key="x")]


def test_the_cancelled_task_keeps_its_thread(ws):
    ws.handle_stimulus(compute("x"), compute("y"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    assert states(ws) == {"x": "cancelled", "y": "ready"}
    assert ws.handle_stimulus(success("x")) == [Execute(key="y", stimulus_id="success")]


def test_reschedule_hands_the_task_back(ws):
    ws.handle_stimulus(compute("x"))
    instructions = ws.handle_stimulus(RescheduleEvent.dummy("x", stimulus_id="r"))
    assert instructions == [RescheduleMsg(key="x", stimulus_id="r")]
    assert ws.tasks == {}


@pytest.mark.parametrize("after_secede", [success("x"), RescheduleEvent.dummy("x", stimulus_id="r")])
def test_secede_frees_the_slot(ws, after_secede):
    ws.handle_stimulus(compute("x"), compute("y"))
    instructions = ws.handle_stimulus(SecedeEvent(key="x", compute_duration=1.5, stimulus_id="s"))
    assert instructions == [LongRunningMsg.match(key="x", compute_duration=1.5), Execute(key="y", stimulus_id="s")]
    assert states(ws) == {"x": "long-running", "y": "executing"}
    assert ws.long_running == {ws.tasks["x"]}
    ws.handle_stimulus(after_secede)
    assert not ws.long_running


def test_a_cancelled_task_may_secede(ws):
    ws.handle_stimulus(compute("x"), compute("y"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    ws.handle_stimulus(SecedeEvent(key="x", compute_duration=1.0, stimulus_id="s"))
    assert states(ws) == {"x": "cancelled", "y": "executing"}
    ws.handle_stimulus(success("x"))
    assert states(ws) == {"y": "executing"}


@pytest.mark.parametrize("running", [False, True])
def test_cancel_compute(ws, running):
    """Only what has not started can be cancelled at once."""
    ws.handle_stimulus(compute("blocker"), compute("x")) if not running else ws.handle_stimulus(compute("x"))
    ws.handle_stimulus(CancelComputeEvent(key="x", stimulus_id="cancel"))
    assert states(ws).get("x") == ("executing" if running else None)


# --- resources -------------------------------------------------------------------------------------------------------


def test_resources_constrain(ws):
    ws.nthreads = 4
    ws.total_resources = {"R": 1}
    ws.available_resources = {"R": 1}
    tasks = [compute(key, resource_restrictions={"R": 1}) for key in ("x", "y")]
    assert ws.handle_stimulus(*tasks) == [Execute(key="x", stimulus_id="compute")]
    assert states(ws) == {"x": "executing", "y": "constrained"}
    assert ws.available_resources == {"R": 0}
    assert Execute(key="y", stimulus_id="success") in ws.handle_stimulus(success("x"))
    ws.handle_stimulus(success("y"))
    assert ws.available_resources == {"R": 1}


def test_what_needs_no_resource_passes_by(ws):
    ws.nthreads = 2
    ws.total_resources = {"R": 1}
    ws.available_resources = {"R": 1}
    ws.handle_stimulus(compute("x", resource_restrictions={"R": 1}), compute("y", resource_restrictions={"R": 1}))
    assert ws.handle_stimulus(compute("z")) == [Execute(key="z", stimulus_id="compute")]


@pytest.mark.parametrize("ending", ["success", "failure", "reschedule", "cancelled"])
def test_resources_come_back(ws, ending):
    ws.total_resources = {"R": 2}
    ws.available_resources = {"R": 2}
    ws.handle_stimulus(compute("x", resource_restrictions={"R": 2}))
    assert ws.available_resources == {"R": 0}
    if ending == "cancelled":
        ws.handle_stimulus(FreeKeysEvent(keys=["x"], stimulus_id="free"))
        assert ws.available_resources == {"R": 0}
    ws.handle_stimulus(
        {
            "success": success("x"),
            "cancelled": success("x"),
            "failure": ExecuteFailureEvent.dummy("x", stimulus_id="f"),
            "reschedule": RescheduleEvent.dummy("x", stimulus_id="r"),
        }[ending]
    )
    assert ws.available_resources == {"R": 2}


# --- fetching ----------------------------------------------------------------------------------------------------------


def test_a_dependency_is_gathered_first(ws):
    assert ws.handle_stimulus(compute("y", "x")) == [
        GatherDep(worker=A, to_gather={"x"}, total_nbytes=1, stimulus_id="compute")
    ]
    assert states(ws) == {"y": "waiting", "x": "flight"}
    assert ws.in_flight_workers == {A: {"x"}}
    assert ws.handle_stimulus(gathered(A, x=5)) == [
        AddKeysMsg(keys=["x"], stimulus_id="gathered"),
        Execute(key="y", stimulus_id="gathered"),
    ]
    assert ws.data == {"x": 5}


def test_the_keys_of_one_peer_travel_together(ws):
    (gather,) = ws.handle_stimulus(compute("y", "x1", "x2", "x3"))
    assert gather.to_gather == {"x1", "x2", "x3"}
    assert gather.total_nbytes == 3


def test_one_request_a_peer(ws):
    ws.handle_stimulus(compute("y1", "x1"))
    assert ws.handle_stimulus(compute("y2", "x2")) == []
    assert states(ws)["x2"] == "fetch"
    instructions = ws.handle_stimulus(gathered(A, x1=1))
    assert GatherDep(worker=A, to_gather={"x2"}, total_nbytes=1, stimulus_id="gathered") in instructions


def test_two_peers_are_asked_at_once(ws):
    event = ComputeTaskEvent.dummy("y", who_has={"x1": [A], "x2": [B]}, stimulus_id="compute")
    assert {i.worker for i in ws.handle_stimulus(event)} == {A, B}


def test_a_message_is_bounded_by_bytes(ws):
    ws.transfer_message_bytes_limit = 10
    event = compute("y", "x1", "x2", "x3", nbytes={"x1": 6, "x2": 6, "x3": 6})
    (gather,) = ws.handle_stimulus(event)
    assert len(gather.to_gather) == 1
    assert list(states(ws).values()).count("fetch") == 2


def test_one_key_above_the_limit_travels_alone(ws):
    ws.transfer_message_bytes_limit = 10
    (gather,) = ws.handle_stimulus(compute("y", "x", nbytes={"x": 1000}))
    assert gather.to_gather == {"x"}


def test_incoming_bytes_are_bounded(ws):
    ws.transfer_incoming_bytes_limit = 100
    ws.transfer_incoming_bytes_throttle_threshold = 1
    event = ComputeTaskEvent.dummy(
        "y", who_has={"x1": [A], "x2": [B]}, nbytes={"x1": 80, "x2": 80}, stimulus_id="compute"
    )
    assert len(ws.handle_stimulus(event)) == 1
    assert ws.transfer_incoming_bytes == 80
    (asked,) = ws.in_flight_workers
    key = next(iter(ws.in_flight_workers[asked]))
    instructions = ws.handle_stimulus(gathered(asked, total_nbytes=80, **{key: 1}))
    assert len([i for i in instructions if isinstance(i, GatherDep)]) == 1


def test_incoming_requests_are_bounded_by_count(ws):
    ws.transfer_incoming_count_limit = 1
    ws.transfer_incoming_bytes_throttle_threshold = 1
    event = ComputeTaskEvent.dummy(
        "y", who_has={"x1": [A], "x2": [B]}, nbytes={"x1": 80, "x2": 80}, stimulus_id="compute"
    )
    assert len(ws.handle_stimulus(event)) == 1
    assert ws.transfer_incoming_count == 1


def test_a_busy_peer_is_asked_again_later(ws):
    ws.handle_stimulus(compute("y", "x"))
    busy = GatherDepBusyEvent(worker=A, total_nbytes=1, stimulus_id="busy")
    assert ws.handle_stimulus(busy) == [
        RetryBusyWorkerLater(worker=A, stimulus_id="busy"),
        RequestRefreshWhoHasMsg.match(keys=["x"]),
    ]
    assert ws.busy_workers == {A}
    assert states(ws)["x"] == "fetch"
    again = ws.handle_stimulus(RetryBusyWorkerEvent(worker=A, stimulus_id="retry"))
    assert again == [GatherDep(worker=A, to_gather={"x"}, total_nbytes=1, stimulus_id="retry")]
    assert not ws.busy_workers


def test_another_holder_is_asked_while_one_is_busy(ws):
    ws.handle_stimulus(compute("y", "x", holders=(A, B)))
    (asked,) = ws.in_flight_workers
    other = ({A, B} - {asked}).pop()
    instructions = ws.handle_stimulus(GatherDepBusyEvent(worker=asked, total_nbytes=1, stimulus_id="busy"))
    assert GatherDep(worker=other, to_gather={"x"}, total_nbytes=1, stimulus_id="busy") in instructions


def test_a_lost_peer_leaves_the_key_missing(ws):
    ws.handle_stimulus(compute("y", "x"))
    lost = GatherDepNetworkFailureEvent(worker=A, total_nbytes=1, stimulus_id="lost")
    ws.handle_stimulus(lost)
    assert states(ws) == {"y": "waiting", "x": "missing"}
    assert ws.missing_dep_flight == {ws.tasks["x"]}
    assert ws.handle_stimulus(FindMissingEvent(stimulus_id="find")) == [
        RequestRefreshWhoHasMsg(keys=["x"], stimulus_id="find")
    ]
    assert ws.handle_stimulus(RefreshWhoHasEvent(who_has={"x": [B]}, stimulus_id="refresh")) == [
        GatherDep(worker=B, to_gather={"x"}, total_nbytes=1, stimulus_id="refresh")
    ]


def test_a_lost_peer_with_another_holder(ws):
    ws.handle_stimulus(compute("y", "x", holders=(A, B)))
    (asked,) = ws.in_flight_workers
    other = ({A, B} - {asked}).pop()
    lost = GatherDepNetworkFailureEvent(worker=asked, total_nbytes=1, stimulus_id="lost")
    assert GatherDep(worker=other, to_gather={"x"}, total_nbytes=1, stimulus_id="lost") in ws.handle_stimulus(lost)


def test_a_reply_may_lack_a_key(ws):
    ws.handle_stimulus(compute("y", "x1", "x2"))
    ws.handle_stimulus(gathered(A, total_nbytes=2, x1=1))
    assert states(ws) == {"y": "waiting", "x1": "memory", "x2": "missing"}


def test_a_value_that_does_not_deserialize_fails_its_dependents(ws):
    ws.handle_stimulus(compute("y", "x"))
    failure = GatherDepFailureEvent.from_exception(
        TypeError("no such class"), worker=A, total_nbytes=1, stimulus_id="failure"
    )
    instructions = ws.handle_stimulus(failure)
    assert [i.key for i in instructions if isinstance(i, TaskErredMsg)] == ["x"]
    assert states(ws)["x"] == "error"
    ws.handle_stimulus(FreeKeysEvent(keys=["y", "x"], stimulus_id="free"))
    assert ws.tasks == {}


def test_removed_workers_are_not_asked(ws):
    ws.handle_stimulus(compute("y1", "x1"), compute("y2", "x2"))
    ws.handle_stimulus(RemoveWorkerEvent(worker=A, stimulus_id="removed"))
    assert states(ws)["x1"] == "flight"
    assert states(ws)["x2"] == "missing"
    ws.handle_stimulus(GatherDepNetworkFailureEvent(worker=A, total_nbytes=1, stimulus_id="lost"))
    assert states(ws)["x1"] == "missing"


def test_data_in_flight_that_nobody_wants_any_more(ws):
    ws.handle_stimulus(compute("y", "x"), FreeKeysEvent(keys=["y", "x"], stimulus_id="free"))
    assert states(ws) == {"x": "cancelled"}
    assert ws.handle_stimulus(gathered(A, x=1)) == []
    assert ws.tasks == {}
    assert ws.data == {}


def test_in_flight_then_to_be_computed_here(ws):
    """Flight -> cancelled -> resumed: the reply that comes is as good as computing."""
    ws.handle_stimulus(compute("y", "x"), FreeKeysEvent(keys=["y", "x"], stimulus_id="free"))
    ws.handle_stimulus(compute("x", stimulus_id="here"))
    assert states(ws) == {"x": "resumed"}
    assert ws.handle_stimulus(gathered(A, x=7)) == [TaskFinishedMsg.match(key="x", stimulus_id="gathered")]
    assert ws.data == {"x": 7}


def test_in_flight_then_to_be_computed_and_the_peer_is_lost(ws):
    ws.handle_stimulus(compute("y", "x"), FreeKeysEvent(keys=["y", "x"], stimulus_id="free"))
    ws.handle_stimulus(compute("x", stimulus_id="here"))
    lost = GatherDepNetworkFailureEvent(worker=A, total_nbytes=1, stimulus_id="lost")
    assert Execute(key="x", stimulus_id="lost") in ws.handle_stimulus(lost)


def test_executing_then_to_be_fetched(ws):
    """Executing -> cancelled -> resumed: its own result serves the dependent."""
    ws.handle_stimulus(compute("x"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    ws.handle_stimulus(compute("y", "x"))
    assert states(ws) == {"x": "resumed", "y": "waiting"}
    instructions = ws.handle_stimulus(success("x"))
    assert Execute(key="y", stimulus_id="success") in instructions
    assert AddKeysMsg(keys=["x"], stimulus_id="success") in instructions or any(
        isinstance(i, TaskFinishedMsg) and i.key == "x" for i in instructions
    )


def test_executing_then_to_be_fetched_and_it_fails(ws):
    ws.handle_stimulus(compute("x"), FreeKeysEvent(keys=["x"], stimulus_id="free"))
    ws.handle_stimulus(compute("y", "x"))
    instructions = ws.handle_stimulus(ExecuteFailureEvent.dummy("x", stimulus_id="failure"))
    assert GatherDep(worker=A, to_gather={"x"}, total_nbytes=1, stimulus_id="failure") in instructions


# --- replicas ----------------------------------------------------------------------------------------------------------


def test_replicas_are_acquired_and_removed(ws):
    acquire = AcquireReplicasEvent(who_has={"x": [A]}, nbytes={"x": 1}, stimulus_id="acquire")
    assert ws.handle_stimulus(acquire) == [GatherDep(worker=A, to_gather={"x"}, total_nbytes=1, stimulus_id="acquire")]
    assert ws.handle_stimulus(gathered(A, x=1)) == [AddKeysMsg(keys=["x"], stimulus_id="gathered")]
    remove = RemoveReplicasEvent(keys=["x"], stimulus_id="remove")
    assert ws.handle_stimulus(remove) == [ReleaseWorkerDataMsg(key="x", stimulus_id="remove")]
    assert ws.tasks == {}


def test_a_replica_that_a_running_task_needs_stays(ws):
    ws.handle_stimulus(UpdateDataEvent(data={"x": 1}, stimulus_id="scatter"), compute("y", "x"))
    with pytest.raises(RuntimeError, match="Cannot remove replica"):
        ws.handle_stimulus(RemoveReplicasEvent(keys=["x"], stimulus_id="remove"))
    assert states(ws) == {"x": "memory", "y": "executing"}


def test_acquiring_what_is_here(ws):
    ws.handle_stimulus(UpdateDataEvent(data={"x": 1}, stimulus_id="scatter"))
    acquire = AcquireReplicasEvent(who_has={"x": [A]}, nbytes={"x": 1}, stimulus_id="acquire")
    assert ws.handle_stimulus(acquire) == []


def test_scattered_data(ws):
    assert ws.handle_stimulus(UpdateDataEvent(data={"x": 1}, stimulus_id="scatter")) == []
    assert ws.data == {"x": 1}
    assert states(ws) == {"x": "memory"}


# --- pausing, stealing -------------------------------------------------------------------------------------------------


def test_a_paused_worker_starts_nothing(ws):
    assert ws.handle_stimulus(PauseEvent(stimulus_id="pause")) == []
    assert ws.handle_stimulus(compute("x"), compute("z", "y")) == []
    assert states(ws) == {"x": "ready", "z": "waiting", "y": "fetch"}
    instructions = ws.handle_stimulus(UnpauseEvent(stimulus_id="unpause"))
    assert {type(i) for i in instructions} == {Execute, GatherDep}


def test_pausing_does_not_stop_what_runs(ws):
    ws.handle_stimulus(compute("x"), PauseEvent(stimulus_id="pause"))
    assert ws.handle_stimulus(success("x")) == [TaskFinishedMsg.match(key="x")]


@pytest.mark.parametrize(
    ("running", "paused", "told"), [(True, False, "executing"), (False, False, "ready"), (False, True, "ready")]
)
def test_steal_request(ws, running, paused, told):
    if not running and not paused:
        ws.handle_stimulus(compute("blocker"))
    if paused:
        ws.handle_stimulus(PauseEvent(stimulus_id="pause"))
    ws.handle_stimulus(compute("x"))
    instructions = ws.handle_stimulus(StealRequestEvent(key="x", stimulus_id="steal"))
    assert instructions == [StealResponseMsg(key="x", state=told, stimulus_id="steal")]
    assert ("x" in ws.tasks) is running


def test_steal_request_of_an_unknown_task(ws):
    instructions = ws.handle_stimulus(StealRequestEvent(key="x", stimulus_id="steal"))
    assert instructions == [StealResponseMsg(key="x", state=None, stimulus_id="steal")]


def test_steal_request_of_a_waiting_task(ws):
    ws.handle_stimulus(compute("y", "x"))
    instructions = ws.handle_stimulus(StealRequestEvent(key="y", stimulus_id="steal"))
    assert StealResponseMsg(key="y", state="waiting", stimulus_id="steal") in instructions
    assert "y" not in ws.tasks


# --- the machine itself ------------------------------------------------------------------------------------------------


def test_several_events_are_one_call(ws):
    instructions = ws.handle_stimulus(compute("y", "x"), gathered(A, x=1), success("y"))
    assert [type(i) for i in instructions] == [GatherDep, AddKeysMsg, Execute, TaskFinishedMsg]


def test_the_log_tells_the_story(ws):
    ws.handle_stimulus(compute("x"), success("x"))
    assert [entry[1:3] for entry in ws.story("x") if entry[0] == "x" and len(entry) > 5] == [
        ("released", "waiting"),
        ("waiting", "ready"),
        ("ready", "executing"),
        ("executing", "memory"),
    ]
    assert [type(event) for event in ws.stimulus_log] == [ComputeTaskEvent, ExecuteSuccessEvent]


def test_the_counter_knows_all_states(ws):
    ws.handle_stimulus(compute("f-1"), compute("f-2"), compute("g-1", "x-1"))
    counts = dict(ws.task_counter.current_count(by_prefix=False))
    assert counts == {"executing": 1, "ready": 1, "waiting": 1, "flight": 1}
    ws.handle_stimulus(FreeKeysEvent(keys=["f-2", "g-1"], stimulus_id="free"))
    counts = {state: n for state, n in ws.task_counter.current_count(by_prefix=False).items() if n}
    assert counts == {"executing": 1, "cancelled": 1}


@pytest.mark.parametrize(
    "event",
    [
        PauseEvent(stimulus_id="s"),
        compute("y", "x"),
        FreeKeysEvent(keys=["x"], stimulus_id="s"),
        GatherDepBusyEvent(worker=A, total_nbytes=1, stimulus_id="s"),
        SecedeEvent(key="x", compute_duration=1.0, stimulus_id="s"),
        StealRequestEvent(key="x", stimulus_id="s"),
        RefreshWhoHasEvent(who_has={"x": [A]}, stimulus_id="s"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_survive_a_dump(event):
    event = event.to_loggable(handled=11.5)
    plain = recursive_to_dict(event)
    assert plain["cls"] == type(event).__name__
    back = StateMachineEvent.from_dict(plain)
    assert type(back) is type(event)
    assert back.handled == 11.5


def test_impossible_transitions_are_refused():
    ws = WorkerState(address="127.0.0.1:1000", validate=True)
    ws.handle_stimulus(compute("x"), success("x"))
    with pytest.raises(InvalidTransition):
        ws._transition(ws.tasks["x"], "flight", stimulus_id="nonsense")


def test_endless_transitions_are_stopped():
    state = WorkerState(address="127.0.0.1:1000", validate=True, transition_counter_max=2)
    with pytest.raises(TransitionCounterMaxExceeded):
        state.handle_stimulus(compute("x"), compute("y"), compute("z"))


@pytest.mark.parametrize("key", ["x", ("x", 0, 1), 5, 1.5, b"bytes", ("a", ("b", 2)), "line\nbreak", "\x00"])
def test_any_key(ws, key):
    assert ws.handle_stimulus(compute(key)) == [Execute(key=key, stimulus_id="compute")]
    ws.handle_stimulus(success(key))
    assert ws.data == {key: 1}


def test_a_chain_of_dependents(ws):
    ws.handle_stimulus(compute("a", "z"), gathered(A, z=1), success("a"))
    assert ws.handle_stimulus(compute("b", "a", "z")) == [Execute(key="b", stimulus_id="compute")]
    assert ws.tasks["b"].dependencies == {ws.tasks["a"], ws.tasks["z"]}
    ws.handle_stimulus(success("b"), FreeKeysEvent(keys=["a", "b", "z"], stimulus_id="free"))
    assert ws.tasks == {}
