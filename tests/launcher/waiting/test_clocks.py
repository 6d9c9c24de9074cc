from __future__ import annotations

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.waiting.clocks import Clocks
from kfp_pytorch.launcher.waiting.limits import Limits

LIMITS = Limits(queue=100, start=50, run=200, acknowledge=10, deletion=5, final_status=7)


def clocks() -> Clocks:
    return Clocks(LIMITS, 0.0)


def test_time_in_the_queue_counts_for_nothing_else() -> None:
    clock = clocks()
    clock.enter(0, Phase.QUEUED, all_running=False)
    clock.enter(90, Phase.STARTING, all_running=False)
    clock.enter(130, Phase.RUNNING, all_running=True)
    clock.count(300)
    assert clock.exceeded() == ""
    assert (clock.queue, clock.start, clock.run) == (0, 0, 170)
    assert clock.next_deadline() == 330


def test_each_stay_in_the_queue_begins_anew_and_keeps_the_time_of_running() -> None:
    clock = clocks()
    clock.enter(0, Phase.QUEUED, all_running=False)
    clock.enter(90, Phase.RUNNING, all_running=True)
    clock.enter(190, Phase.QUEUED, all_running=False)
    clock.count(280)
    assert clock.exceeded() == ""
    clock.count(290)
    assert clock.exceeded() == "queue"
    clock.enter(290, Phase.RUNNING, all_running=True)
    clock.count(389)
    assert clock.exceeded() == ""
    clock.count(390)
    assert clock.exceeded() == "run"


def test_a_job_without_a_condition_fails_sooner_than_one_that_starts_slowly() -> None:
    clock = clocks()
    clock.count(9)
    assert clock.exceeded() == ""
    clock.count(10)
    assert clock.exceeded() == "acknowledge"
    clock.enter(10, Phase.STARTING, all_running=False)
    assert clock.exceeded() == ""
    clock.count(50)
    assert clock.exceeded() == "start"


def test_what_nobody_could_do_while_the_server_was_away_begins_anew() -> None:
    clock = clocks()
    clock.enter(0, Phase.UNACKNOWLEDGED, all_running=False, deleting=True, first_pod_ended=True)
    clock.reset_after_outage(30)
    assert clock.exceeded() == ""
    assert (clock.acknowledge, clock.deletion, clock.final_status) == (0, 0, 0)
    assert clock.start == 30
    clock.count(35)
    assert clock.exceeded() == "deletion"


def test_a_job_that_says_running_while_pods_are_missing_is_still_starting() -> None:
    clock = clocks()
    clock.enter(0, Phase.RUNNING, all_running=False)
    clock.count(50)
    assert clock.exceeded() == "start"


def test_a_pod_lost_later_gets_the_time_of_a_start_to_come_back() -> None:
    clock = clocks()
    clock.enter(0, Phase.RUNNING, all_running=True)
    clock.enter(100, Phase.RUNNING, all_running=False)
    clock.count(149)
    assert clock.exceeded() == ""
    clock.count(150)
    assert clock.exceeded() == "start"


def test_what_an_adopted_job_used_before_counts_for_the_limit_of_its_phase_alone() -> None:
    for phase, counter in ((Phase.QUEUED, "queue"), (Phase.STARTING, "start")):
        clock = clocks()
        clock.enter(0, phase, all_running=False)
        clock.add_earlier(49, 49)
        assert getattr(clock, counter) == 49
        assert clock.queue + clock.start + clock.run == 49
    clock = clocks()
    clock.enter(0, Phase.RUNNING, all_running=False)
    clock.add_earlier(150, 150)
    clock.count(49)
    assert clock.exceeded() == ""
    clock.enter(49, Phase.RUNNING, all_running=True)
    clock.count(50)
    assert clock.exceeded() == "run"


def test_a_deletion_that_does_not_end_and_an_end_that_is_not_told_are_limits_too() -> None:
    clock = clocks()
    clock.enter(0, Phase.RUNNING, all_running=True, deleting=True)
    assert clock.next_deadline() == 5
    clock.count(5)
    assert clock.exceeded() == "deletion"
    clock = clocks()
    clock.enter(0, Phase.RUNNING, all_running=True, first_pod_ended=True)
    clock.enter(6, Phase.RUNNING, all_running=True)
    clock.enter(7, Phase.RUNNING, all_running=True, first_pod_ended=True)
    clock.count(13)
    assert clock.exceeded() == ""
    clock.count(14)
    assert clock.exceeded() == "final_status"


def test_no_limit_is_no_limit() -> None:
    clock = Clocks(Limits(queue=0, start=0, run=0), 0.0)
    for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING):
        clock.enter(clock.counted_to, phase, all_running=False)
        clock.count(clock.counted_to + 1e9)
        assert clock.exceeded() == ""
        assert clock.next_deadline() is None


def test_a_clock_that_goes_back_counts_nothing() -> None:
    clock = clocks()
    clock.enter(100, Phase.RUNNING, all_running=True)
    clock.count(50)
    assert clock.run == 0


def test_what_has_ended_in_time_is_given_up_for_nothing_but_an_operator_that_does_not_say_so() -> (
    None
):
    for all_running in (True, False):
        clock = clocks()
        clock.enter(0, Phase.RUNNING, all_running=all_running)
        clock.enter(49, Phase.RUNNING, all_running=all_running, first_pod_ended=True)
        clock.count(55)
        assert (clock.exceeded(), clock.next_deadline()) == ("", 56)


def test_no_operator_is_waited_for_in_the_queue() -> None:
    clock = clocks()
    clock.enter(0, Phase.QUEUED, all_running=False, first_pod_ended=True)
    clock.count(99)
    assert (clock.exceeded(), clock.next_deadline()) == ("", 100)
