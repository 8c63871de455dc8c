import pytest
import torch

from fuseproof.pipelines import stages
from fuseproof.pipelines.stages import StageClock


class Recorder:
    def __init__(self):
        self.events = []

    def stage_started(self, name, total_steps):
        self.events.append(("started", name, total_steps))

    def step_finished(self, step):
        self.events.append(("step", step))

    def stage_finished(self, name, milliseconds):
        self.events.append(("finished", name))


@pytest.fixture
def ticking(monkeypatch):
    """A host clock that advances by one second each time it is read."""
    reads = iter(range(1_000))
    monkeypatch.setattr(stages.time, "perf_counter", lambda: float(next(reads)))


def test_every_stage_and_step_is_timed_once_and_the_remainder_shows(ticking):
    recorder = Recorder()
    clock = StageClock(torch.device("cpu"), recorder)
    with clock.request():  # read 0
        with clock.stage("TextEncodingStage"):  # reads 1, 2
            pass
        with clock.stage("DenoisingStage", total_steps=2):  # reads 3, 4 (first mark), 7
            clock.step_finished()  # read 5
            clock.step_finished()  # read 6
    assert [("TextEncodingStage", 1000.0), ("DenoisingStage", 4000.0)] == [
        (s.name, s.milliseconds) for s in clock.stages
    ]
    assert (1000.0, 1000.0) == clock.denoise_steps_ms()
    assert 8000.0 == clock.worker_ms
    assert [
        ("started", "TextEncodingStage", None),
        ("finished", "TextEncodingStage"),
        ("started", "DenoisingStage", 2),
        ("step", 0),
        ("step", 1),
        ("finished", "DenoisingStage"),
    ] == recorder.events


def test_a_failed_stage_is_not_recorded():
    clock = StageClock(torch.device("cpu"))
    with pytest.raises(ValueError, match="broken"), clock.stage("DecodingStage"):
        raise ValueError("broken")
    assert [] == clock.stages


def test_a_stage_that_comes_again_is_one_row_and_its_steps_go_on(ticking):
    recorder = Recorder()
    clock = StageClock(torch.device("cpu"), recorder)
    with clock.request():  # read 0
        for _ in range(2):
            with clock.stage("DenoisingStage", total_steps=1):  # 1, mark 2, step 3, 4; then 8, 9, 10, 11
                clock.step_finished()
            with clock.stage("DecodingStage"):  # 5, arrival 6, 7; then 12, 13, 14
                clock.frames_arrived(4)
    assert [("DenoisingStage", 6000.0), ("DecodingStage", 4000.0)] == [(s.name, s.milliseconds) for s in clock.stages]
    assert (1000.0, 1000.0) == clock.denoise_steps_ms()
    assert [(4, 6000.0), (4, 13000.0)] == [(one.frames, one.milliseconds) for one in clock.frame_arrivals]
    assert [0, 0] == [event[1] for event in recorder.events if event[0] == "step"], "each has a bar of its own"
