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
